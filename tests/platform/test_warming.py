"""Before the first iteration: kernels are compiled, and nothing that training sees has changed."""

import gc
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from taugrad.platform.data.examples import Tensors
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.builtin import ClassificationTask
from taugrad.platform.training.warming import warm_up

torch.set_num_threads(1)
EXAMPLES = Tensors(torch.randn(64, 1, 4, 4), torch.arange(64) % 10)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10)
    )


def prepare(spec: RunSpec, network: nn.Module) -> None:
    warm_up(spec, network, ClassificationTask(), EXAMPLES, torch.device("cpu"))


def test_neither_the_model_nor_random_numbers_change():
    network, spec = model(), RunSpec(compressor="strom(density(0.01)) | golomb_rice")
    before = {name: each.clone() for name, each in network.state_dict().items()}
    drawn = torch.get_rng_state()
    prepare(spec, network)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())
    assert all(each.grad is None for each in network.parameters())


def compiled() -> int:
    """Compiled forms of all numba functions in this process."""
    from numba.core.dispatcher import Dispatcher

    return sum(len(each.overloads) for each in gc.get_objects() if isinstance(each, Dispatcher))


def first_steps() -> None:
    """In a process of its own: how many functions are compiled before, and in, the first iterations."""
    from taugrad.compressors.bucket.feedback import FeedbackCompressor

    for line in (
        "wgt(tau=0.01)",
        "strom(density(0.05)) | golomb_rice",
        "qgt(density(0.05))",
        "linear(bits=4)",
    ):
        spec, network = RunSpec(compressor=line), model()
        before = compiled()
        prepare(spec, network)
        warmed = compiled()
        names = [name for name, _ in network.named_parameters()]
        for scale in (1e-4, 3e-3, 1.0):  # nothing of it is sent, little, nearly all
            gradients = [scale * torch.randn(each.numel()) for each in network.parameters()]
            worker = FeedbackCompressor(spec.compressor, names, gradients, threads=1)
            for i in range(3):
                received = worker.read(worker.compress(gradients, i).payload)
                total = torch.zeros(sum(each.numel() for each in gradients))
                worker.compressor.add(received, total)
                worker.compressor.total([received] * 2, 2, total)
        print(line, warmed - before, compiled() - warmed, sep=": ")


def test_the_first_iterations_compile_nothing():
    # In another process: here other tests may have compiled everything.
    script, here = "import test_warming; test_warming.first_steps()", Path(__file__).parent
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=True
    )
    lines = [line.split(": ") for line in told.stdout.splitlines()]
    assert len(lines) == 4
    assert [int(line[2]) for line in lines] == [0, 0, 0, 0], told.stdout
    assert int(lines[0][1]) > 0, told.stdout
