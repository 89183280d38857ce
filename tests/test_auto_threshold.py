"""What choose/auto_threshold.py judges by, who takes part in it, and that nothing is trained twice."""

import importlib
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from taugrad.compressors.method import read_config
from taugrad.platform.spec import RunSpec
from taugrad.search.auto_specs import by_law
from taugrad.search.law.fitting import SHIPPED, read_law
from taugrad.search.reading import read_search

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


class Point(NamedTuple):
    """Stands for auto_trainings.Point."""

    accuracy: float
    wire_bytes: float


@pytest.fixture(scope="module")
def rooms() -> Any:
    """The benchmark's modules, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))

        def room(name: str) -> ModuleType:
            return importlib.import_module(f"benchmarks.choose.auto_{name}")

        yield room


# Few values, so that many points have one in common.
SKIPPING = {"kind": "none", "nonfinite": "skip"}


def test_every_entrants_lines_are_specs_of_every_pair(rooms: Any) -> None:
    pairs, taking_part = rooms("pairs"), rooms("entrants")
    shipped = read_law(SHIPPED)
    for pair in pairs.PAIRS:
        bare = RunSpec.model_validate(pair.tree("none"))
        own = RunSpec.model_validate(pair.tree(pairs.CORRECTED.format(tau=1)))
        laws = {tolerance: shipped.of(own, tolerance) for tolerance in taking_part.TOLERANCES}
        entrants = taking_part.entrants(laws)
        assert {each.name for each in entrants} >= {taking_part.DEFAULT, *taking_part.RIVALS}
        for entrant in entrants:
            specs = [RunSpec.model_validate(pair.tree(line, seed=1)) for line in entrant.settings]
            assert len({each.fingerprint() for each in specs}) == 3
            assert {each.compressor.nonfinite for each in specs} == {"skip"}
            assert {each.compressor.codec for each in specs} == {"golomb_rice"}
            assert all(read_config(str(each.compressor)) == each.compressor for each in specs)
            if entrant.name == taking_part.DEFAULT:
                assert [each.compressor.tau for each in specs] == list(laws.values())
                skipping = bare.model_copy(update={"compressor": read_config(SKIPPING), "seed": 1})
                auto = [by_law(skipping, shipped, tolerance) for tolerance in taking_part.TOLERANCES]
                assert [each.fingerprint() for each in auto] == [each.fingerprint() for each in specs]
            if entrant.name in taking_part.RIVALS:
                rival = "wgt" if entrant.name.endswith("wgt") else "strom"
                assert {each.compressor.kind for each in specs} == {rival}
                assert {each.compressor.tau.kind for each in specs} == {
                    entrant.name.partition(",")[0].lower()
                }


def test_every_search_is_one_that_the_command_takes(rooms: Any, tmp_path: Path) -> None:
    pairs = rooms("pairs")
    everything = pairs.searches(pairs.PAIRS, 60, 15)
    assert len({each.name for each in everything}) == len(everything)
    for each in everything:
        path = tmp_path / f"{each.name}.yaml"
        path.write_text(json.dumps(each.tree()), encoding="utf-8")
        search = read_search(path, each.overrides())
        assert (search.name, search.settings.trials) == (each.name, 60 if not each.setting else 15)
        spec = search.spec({"compressor.tau": 0.5})
        flat = spec.flat()
        corrected = each.method == pairs.CORRECTED
        assert flat["experiment"] == f"{'corrected' if corrected else 'tau'}-{each.pair.name}"
        if corrected:  # its own run without compression is the pair's, but for the setting
            baseline = search.baseline().training.optimizer
            assert baseline.weight_decay == 0.0005
            assert baseline.momentum == each.setting.get("compressor.momentum", 0.9)
        assert all(float(flat[field]) == value for field, value in each.setting.items())


def test_what_was_trained_is_not_trained_again(
    rooms: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings, path = rooms("trainings"), tmp_path / "trainings.jsonl"
    tree = {
        "data": {"kind": "synthetic", "train_examples": 64, "test_examples": 50, "height": 4, "width": 4},
        "model": {"kind": "mlp", "widths": [8]},
        "training": {"epochs": 1, "batch_size": 16},
        "sync": {"mode": "simulated"},
    }
    specs = [RunSpec.model_validate(tree | {"compressor": line}) for line in ("none", "strom(0.1)")]
    said: list[str] = []
    first = trainings.Trainings(path)
    first.train([*specs, specs[0]], said.append)
    assert said == ["  2 of 2 trainings"]
    written = path.read_bytes()
    entries = [json.loads(line) for line in written.splitlines()]
    assert {each["fingerprint"] for each in entries} == {each.fingerprint() for each in specs}
    whole, sparse = (first.of(each) for each in specs)
    parameters, workers, steps = 16 * 8 + 8 + 8 * 10 + 10, 2, 4
    assert whole.wire_bytes == 4 * parameters * workers * steps
    assert sparse.wire_bytes < whole.wire_bytes
    assert all(0 <= each["accuracy"] <= 1 for each in entries)

    def refuse(*_: object, **__: object) -> ProcessPoolExecutor:
        raise AssertionError("trained again")

    monkeypatch.setattr(trainings.trainings, "ProcessPoolExecutor", refuse)
    again = trainings.Trainings(path)
    again.train(specs, said.append)
    assert [again.of(each) for each in specs] == [whole, sparse]
    assert path.read_bytes() == written
    assert len(said) == 1
    with pytest.raises(AssertionError, match="trained again"):
        again.train([specs[0].model_copy(update={"seed": 1})], said.append)
