"""A training function of one's own on Ray Train, as docs/how-to/ray-train.md has it."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(
    ("script", "checkpoint"),
    [
        ("train", "train.pt"),
        # Local steps that are cut and go on are in tests/compressors/ddp_adapters.py, too.
        pytest.param("local_train", "optimizer-1.pt", marks=pytest.mark.long),
    ],
)
def test_a_function_that_fails_goes_on_from_its_checkpoint_with_the_plain_loops_losses(
    script, checkpoint, one_ray
):
    code, said = one_ray(str(Path(__file__).with_name("ray_train_process.py")), f"{script}.py")
    assert code == 0, said
    folder = one_ray.folder / script
    for rank in range(2):
        plain, ours = ((folder / f"{name}{rank}.txt").read_text().split() for name in ("plain", ""))
        assert len(plain) == 48
        assert ours == plain[:30] + plain[24:]
    files, metrics = ast.literal_eval((folder / "result.txt").read_text())
    assert {"taugrad-rank0.pt", "taugrad-rank1.pt", checkpoint} <= set(files)
    assert metrics["comm/wire_bytes"] > 0
