"""The functions on the page about one's own script, put to use by one worker."""

import fences
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather


@pytest.fixture
def page(tmp_path):
    """What the page's Python defines; a process group of one is there."""
    names = {}
    for block in fences.blocks("docs/how-to/own-script.md"):
        if block.language == "python":
            exec(compile(block.text, block.where, "exec"), names)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield names
    dist.destroy_process_group()


def trained(page, steps):
    """A model after some steps, its optimizer, and the state of its compressor."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    state = page["compress"](ddp)
    for number in range(steps):
        inputs = torch.randn(8, 32, generator=torch.Generator().manual_seed(number))
        page["step"](optimizer, state, ddp(inputs).square().mean(), 1024.0)
    return ddp, optimizer, state


def test_a_run_that_was_saved_and_loaded_goes_on_as_if_it_had_not_been(page, tmp_path, capsys):
    page["save"](tmp_path, 0, *trained(page, 5))
    ddp, optimizer, state = trained(page, 0)
    page["load"](tmp_path, 0, ddp, optimizer, state)
    whole, _, of_whole = trained(page, 5)
    assert torch.equal(whole.module.weight, ddp.module.weight)
    assert not torch.equal(whole.module.weight, trained(page, 0)[0].module.weight)
    residuals = [each.feedback.state_dict() for each in (state, of_whole)]
    assert str(residuals[0]) == str(residuals[1])
    page["report"](of_whole)
    assert "in 5 steps" in capsys.readouterr().out


def test_a_step_whose_gradient_overflows_is_left_out_and_the_scale_halved(page):
    ddp = DistributedDataParallel(torch.nn.Linear(4, 1))
    before = ddp.module.weight.detach().clone()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    state = CompressionState(ddp, "strom(density(0.01), momentum=0.9, nonfinite='skip')")
    ddp.register_comm_hook(state, compressed_allgather)
    loss = (ddp(torch.full((1, 4), 1e30)) * 1e30).sum()
    assert page["step"](optimizer, state, loss, 1024.0) == 512.0
    assert torch.equal(ddp.module.weight, before)
