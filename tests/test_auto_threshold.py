"""What choose/auto_threshold.py judges by, who takes part in it, and that nothing is trained twice."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from taugrad.compressors.method import read_config
from taugrad.platform.spec import RunSpec
from taugrad.search.auto_specs import by_law
from taugrad.search.law.fitting import SHIPPED, read_law

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def rooms():
    """The benchmark's modules, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))

        def room(name: str) -> ModuleType:
            return importlib.import_module(f"benchmarks.choose.auto_{name}")

        yield room


# Few values, so that many points have one in common.
SKIPPING = {"kind": "none", "nonfinite": "skip"}


def test_every_entrants_lines_are_specs_of_every_pair(rooms):
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
