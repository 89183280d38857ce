"""A run by Ray that publishes its weights: readers have the agreed ones, and MLflow what was published."""

import pytest
import torch
from stored import outcome

from taugrad.compressors import PatchReader

pytestmark = pytest.mark.ray


def test_a_reader_has_the_final_agreed_weights(undisturbed):
    folder = undisturbed.ray.folder
    whole = outcome(folder, "soak", "wgt")
    agreed, published = whole["shared"]["agreed"]["model"], whole["metrics"]
    weights = {name: torch.zeros_like(tensor) for name, tensor in agreed.items()}
    last = PatchReader(folder / "weights").update(weights)
    assert all(weights[name].equal(tensor) for name, tensor in agreed.items())
    numbers = dict(published["publish/number"])
    assert sorted(numbers.values()) == list(range(last + 1))
    sizes = {path.name: path.stat().st_size for path in (folder / "weights").glob("*.patch")}
    for step, nbytes in published["publish/patch_bytes"]:
        assert nbytes == sizes.get(f"{int(numbers[step]):010d}.patch", 0)
    assert all(0 < share <= 1 for _, share in published["publish/changed_share"])
