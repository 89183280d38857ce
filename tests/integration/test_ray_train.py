"""A training function of one's own on Ray Train, as docs/how-to/ray-train.md has it."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray


def test_functions_that_fail_go_on_from_their_checkpoints_with_the_plain_loops_losses(one_ray):
    code, said = one_ray(str(Path(__file__).with_name("ray_train_process.py")))
    assert code == 0, said
    for script, own in (("train", "train.pt"), ("local_train", "optimizer-1.pt")):
        folder = one_ray.folder / script
        for rank in range(2):
            plain, ours = ((folder / f"{name}{rank}.txt").read_text().split() for name in ("plain", ""))
            assert len(plain) == 48
            assert ours == plain[:30] + plain[24:]
        files, metrics = ast.literal_eval((folder / "result.txt").read_text())
        assert {"taugrad-rank0.pt", "taugrad-rank1.pt", own} <= set(files)
        assert metrics["comm/wire_bytes"] > 0
