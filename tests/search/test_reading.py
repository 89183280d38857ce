"""`taugrad search SPEC`: the file, the environment and the command line together."""

import shlex
from pathlib import Path

import pytest

from taugrad.platform.spec import SpecError
from taugrad.platform.spec.reading import read_spec
from taugrad.search import run_search
from taugrad.search.outputs import folder_of
from taugrad.search.reading import read_search
from taugrad.search.search import corner_specs
from taugrad.search.space import dimensions

SPEC = """
data: {kind: digits}
model: {kind: mlp}
compressor: {kind: wgt, tau: {log: [1e-5, 1e-1]}}
"""


SHIPPED = sorted((Path(__file__).parents[2] / "experiments" / "search").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_search_is_valid(path):
    search = read_search(path, [])
    assert dimensions(search.tree)
    assert corner_specs(search)


@pytest.fixture
def read(tmp_path):
    def read(text, *overrides):
        path = tmp_path / "find.yaml"
        path.write_text(text)
        return read_search(path, overrides)

    return read


def names(search):
    return [dimension.name for dimension in dimensions(search.tree)]


def test_a_point_is_a_spec(read):
    search = read(SPEC + "search: {trials: 7}")
    assert search.name == "find"
    assert search.settings.trials == 7
    spec = search.spec({"compressor.tau": 0.25})
    assert str(spec.compressor) == "wgt(tau=0.25)"
    assert spec.data.kind == "digits"
    assert [corner.compressor.tau for corner in corner_specs(search)[1:]] == [1e-5, 0.1]


def test_the_command_line_gives_ranges_and_takes_them_away(read):
    search = read(SPEC, "--training.batch_size", "{int: [16, 64]}", "--compressor.tau=0.5")
    assert names(search) == ["training.batch_size"]
    assert search.spec({"training.batch_size": 32}).compressor.tau == 0.5
    search = read(SPEC, "--compressor.tau", "{log: [1e-3, 1e-2]}", "--search.trials", "3")
    assert [dimension.low for dimension in dimensions(search.tree)] == [1e-3]
    assert search.settings.trials == 3
    search = read("", "--compressor", "{choice: [none, 'bgt(0.1)']}")
    assert names(search) == ["compressor"]
    search = read(SPEC, "--compressor", "strom(tau={'log': [1e-3, 1e-2]}) | golomb_rice")
    assert search.spec({"compressor.tau": 0.005}).compressor.kind == "strom"
    search = read(SPEC, "--compressor", "bgt(0.1)", "--training.optimizer.lr", "{log: [1e-3, 1]}")
    assert names(search) == ["training.optimizer.lr"]


def test_the_environment_gives_values_and_the_section(read, monkeypatch):
    monkeypatch.setenv("TAUGRAD_SEARCH__TRIALS", "5")
    monkeypatch.setenv("TAUGRAD_COMPRESSOR__TAU", "0.3")
    search = read(SPEC, "--training.batch_size", "{int: [16, 64]}")
    assert search.settings.trials == 5
    assert names(search) == ["training.batch_size"]
    assert search.spec({"training.batch_size": 16}).compressor.tau == 0.3


def test_the_baseline_is_the_same_run_without_compression(read):
    text = (
        "sync: {mode: simulated, of: {mode: gradients, pattern: sharded, downlink: 'bgt(1)'}}\n"
        "training: {optimizer: {momentum: 0}}"
    )
    search = read(text, "--compressor", "topk(density={'log': [1e-3, 1e-1]}, momentum=0.8)")
    baseline, middle = search.baseline(), search.spec(search.middle)
    assert str(baseline.compressor) == "none"
    assert baseline.sync.of.downlink is None
    assert baseline.training.optimizer.momentum == 0.8
    assert middle.training.optimizer.momentum == 0
    assert (baseline.seed, baseline.data, baseline.model) == (middle.seed, middle.data, middle.model)


@pytest.mark.parametrize(
    ("sync", "method"),
    [
        ("{mode: gradients, authenticated: true}", "{kind: wgt, tau: 1}"),
        ("{mode: gradients, pattern: collective}", "{kind: linear}"),
    ],
)
def test_a_search_without_a_baseline_has_none_to_check(read, monkeypatch, sync, method):
    checked = []
    monkeypatch.setattr(run_search, "check", lambda spec, *_, **__: checked.append(spec.compressor.kind))
    text = f"data: {{kind: digits}}\nmodel: {{kind: mlp}}\nsync: {sync}\ncompressor: {method}"
    search = read(text, "--training.epochs", "{int: [1, 2]}")
    with pytest.raises(SpecError, match=r"without compression: [^$]*search\.baseline = false"):
        run_search._check(search, corner_specs(search))
    checked.clear()
    search = read(text, "--training.epochs", "{int: [1, 2]}", "--search.baseline", "false")
    run_search._check(search, corner_specs(search))
    assert len(checked) == 1


@pytest.mark.parametrize("name", ["..", ".", "a."])
def test_a_search_stays_in_its_folder(read, name):
    with pytest.raises(SpecError, match=r"search\.name"):
        read(SPEC, "--search.name", name)
    assert folder_of("x", name).resolve().parent.name not in ("taugrad-runs", "searches")


def test_budgets_do_not_make_another_search_but_ranges_do(read):
    same = read(SPEC + "search: {trials: 9, minutes: 3, objective: accuracy_per_wire_gb}")
    assert read(SPEC).identity() == same.identity()
    assert read(SPEC).identity() != read(SPEC, "--compressor.tau", "{log: [1e-5, 1]}").identity()
    assert read(SPEC).identity() != read(SPEC, "--training.epochs", "3").identity()


METHODS = "{choice: ['bgt(0.1)', 'strom(0.1) | golomb_rice']}"
OPTIMIZERS = "{choice: [{kind: sgd, lr: 0.1}, {kind: adam, lr: 0.001}]}"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("compressor", (METHODS, METHODS.replace("golomb_rice", "packed32"))),
        ("training.optimizer", (OPTIMIZERS, OPTIMIZERS.replace("0.001", "0.3"))),
        ("experiment", ("a b", "a/b")),
    ],
)
def test_another_alternative_of_a_choice_or_experiment_makes_another_search(read, field, values):
    one, other = (read(SPEC, f"--{field}", value) for value in values)
    assert one.identity() != other.identity()


def test_a_value_for_a_range_inside_a_choice_is_refused(read, monkeypatch):
    inside = "compressor: {choice: [{kind: wgt, tau: {choice: [{log: [0.1, 1]}, 2]}}, 'bgt(0.1)']}"
    read(inside, "--compressor", "qgt(1)", "--training.epochs", "{int: [1, 2]}")
    with pytest.raises(SpecError, match=r"--compressor\.tau: is inside a choice; give its value there"):
        read(inside, "--compressor.tau", "0.5")
    monkeypatch.setenv("TAUGRAD_COMPRESSOR__TAU", "0.5")
    with pytest.raises(SpecError, match="inside a choice"):
        read(inside)


def test_train_says_that_a_search_is_none_of_its_specs(tmp_path):
    path = tmp_path / 'it\'s "here" now.yaml'
    path.write_text(SPEC + "search: {trials: 3}")
    with pytest.raises(SpecError, match="is the spec of a search: taugrad search") as refusal:
        read_spec(path)
    command = refusal.value.problems[0].partition(": ")[2]
    assert shlex.split(command) == ["taugrad", "search", str(path)]


def test_a_wrong_field_of_the_section_is_named_with_the_place_that_gave_it(read, tmp_path, monkeypatch):
    monkeypatch.setenv("TAUGRAD_SEARCH__SEEDS", "0")
    with pytest.raises(SpecError) as refused:
        read(f"{SPEC}search: {{grace: 0}}", "--search.trials", "0", "--search.trail", "3")
    places = dict(zip((p.split(" ")[0] for p in refused.value.problems), refused.value.sources, strict=True))
    assert places == {
        "search.grace": str(tmp_path / "find.yaml"),
        "search.seeds": "TAUGRAD_SEARCH__SEEDS",
        "search.trials": "command line",
        "search.trail:": "command line",
    }
