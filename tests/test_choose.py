"""The page that decides: its advice makes valid specs, and its figures are those of the results."""

import sys
from pathlib import Path

import pytest
import yaml
from cases import in_turn

from taugrad.platform.advice import BESIDES, METHODS, WORTH_KNOWING, Situation, advise, lines_of
from taugrad.platform.spec import RunSpec

DOCS = Path(__file__).parent.parent / "docs"
ADVICE = {each.name: each for each in (*METHODS, *BESIDES, *WORTH_KNOWING)}


@pytest.fixture(scope="module")
def make_choose():
    sys.path.insert(0, str(DOCS))
    try:
        import make_choose

        yield make_choose
    finally:
        sys.path.remove(str(DOCS))


def test_the_page_is_what_the_advice_and_the_results_make(make_choose):
    assert (DOCS / "choose.md").read_text(encoding="utf-8") == make_choose.page(), (
        "python docs/make_choose.py"
    )
    assert make_choose.MEASURED.keys() == ADVICE.keys()


def test_a_figure_that_is_not_there_is_refused(make_choose):
    with pytest.raises(LookupError, match="no row 'nothing'"):
        make_choose.cell("quickstart", "nothing", "time s")
    with pytest.raises(LookupError, match="'time h'"):
        make_choose.cell("quickstart", "none", "time h")


@in_turn("name", [name for name, each in ADVICE.items() if not each.use[0].startswith("taugrad")])
def test_what_is_advised_is_a_valid_spec(name):
    RunSpec.model_validate(yaml.safe_load("\n".join(ADVICE[name].use)))


@in_turn(
    "situation, names",
    [
        (Situation("sgd", 1e8), ["sgd"]),
        (Situation("sgd", 1e9), ["sgd"]),
        (Situation("sgd", 1e10), ["fast link"]),
        (Situation("adamw", 1e10), ["fast link"]),
        (Situation("lamb", 1e9, workers=64), ["adaptive optimizer"]),
        (Situation("lars", 5e7, 0.004, 8), ["sgd", "many workers"]),
        (Situation("lars", 5e7, 0.02, 8), ["sgd", "long link"]),
        (Situation("sgd", 5e7, 0.03, 8, 2, "fp16"), ["sgd", "sites", "long link", "fp16"]),
    ],
)
def test_who_is_advised_what(situation, names):
    found = advise(situation)
    assert [each.name for each in found] == names
    assert all(each.when in " ".join(lines_of(found)) for each in found)
