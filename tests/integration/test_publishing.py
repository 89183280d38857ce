"""A run by Ray that publishes its weights: readers have the agreed ones, and MLflow what was published."""

import pytest
import torch
from specs import write_digits
from stored import client_of, named_runs, outcome

from taugrad.compressors import PatchReader

pytestmark = pytest.mark.ray


def test_a_reader_has_the_final_agreed_weights(one_ray):
    folder = one_ray.folder
    publish = {"path": str(folder / "weights"), "every": 10, "full_every": 2}
    more = {"compressor": "strom(tau=0.01) | golomb_rice", "checkpoint": {"interval": 15}}
    spec = write_digits(folder, "publishing", experiment="publishing", publish=publish, **more)
    code, said = one_ray("train", spec)
    assert code == 0, said
    agreed = outcome(folder, "publishing", "publishing")["shared"]["agreed"]["model"]
    weights = {name: torch.zeros_like(tensor) for name, tensor in agreed.items()}
    last = PatchReader(folder / "weights").update(weights)
    assert all(weights[name].equal(tensor) for name, tensor in agreed.items())
    run = named_runs(client_of(folder), "publishing")["publishing"]
    points = client_of(folder).get_metric_history(run.info.run_id, "publish/number")
    assert sorted(point.value for point in points) == list(range(last + 1))
    sizes = {path.name: path.stat().st_size for path in (folder / "weights").glob("*.patch")}
    for point in client_of(folder).get_metric_history(run.info.run_id, "publish/patch_bytes"):
        number = {other.step: other.value for other in points}[point.step]
        assert point.value == sizes.get(f"{int(number):010d}.patch", 0)
    shares = client_of(folder).get_metric_history(run.info.run_id, "publish/changed_share")
    assert all(0 < point.value <= 1 for point in shares)
