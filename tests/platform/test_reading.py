"""Specs: files, environment and command line, and what is said when they are wrong."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from taugrad.platform.reading import SpecError, read_spec, spec_fields
from taugrad.platform.spec import RunSpec

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("TAUGRAD_SEED", "TAUGRAD_COMPRESSOR__TAU", "TAUGRAD_COMPRESSOR__KIND"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def read(tmp_path):
    """Reads a spec from text, with command-line overrides."""

    def read_text(text: str, *overrides: str) -> RunSpec:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return read_spec(path, overrides)

    return read_text


@pytest.fixture
def problems(read):
    """The problems that a spec is refused for, one a line."""

    def refuse(text: str, *overrides: str) -> list[str]:
        with pytest.raises(SpecError) as refusal:
            read(text, *overrides)
        return refusal.value.problems

    return refuse


def test_an_empty_file_is_the_default_spec(read):
    assert read("") == RunSpec()


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("**/*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_spec_is_valid(path):
    spec = read_spec(path)
    assert spec.experiment == yaml.safe_load(path.read_text())["experiment"]


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(read, monkeypatch):
    text = "seed: 1\ncompressor: {kind: wgt, tau: 0.1}\n"
    assert read(text).seed == 1
    monkeypatch.setenv("TAUGRAD_SEED", "2")
    monkeypatch.setenv("TAUGRAD_COMPRESSOR__TAU", "0.2")
    assert (read(text).seed, read(text).compressor.tau) == (2, 0.2)
    spec = read(text, "--seed", "3", "--compressor.tau", "3e-1")
    assert (spec.seed, spec.compressor.tau, spec.compressor.kind) == (3, 0.3, "wgt")


def test_a_field_of_a_union_can_be_set_without_naming_its_kind(read):
    assert read("", "--training.optimizer.lr", "0.5").training.optimizer.lr == 0.5
    assert read("data: {test_fraction: 0.3}").data.test_fraction == 0.3


def test_another_kind_brings_its_own_defaults(read):
    optimizer = read("", "--training.optimizer.kind", "adamw").training.optimizer
    assert (optimizer.kind, optimizer.lr) == ("adamw", 1e-3)


@pytest.mark.parametrize("written", ["1e-3", "1E-3", "0.001", "1.0e-3", "'1e-3'"])
def test_yaml_numbers_are_read_as_people_write_them(read, written):
    assert read(f"compressor: {{kind: bgt, tau: {written}}}").compressor.tau == 1e-3


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        ("compressor: {kind: wgt, tau: 0}", [], "compressor.tau = 0: must be greater than 0"),
        ("compressor: {kind: wgt, tau: -1}", [], "compressor.tau = -1: must be greater than 0"),
        ("compressor: {kind: wgt, tau: .nan}", [], "compressor.tau = nan: must be greater than 0"),
        ("compressor: {kind: wgt, tau: .inf}", [], "compressor.tau = inf: must be greater than 0"),
        ("compressor: {kind: wgt}", [], "compressor.tau: is missing"),
        ("compressor: {kind: none, tau: 1}", [], "kind none has no such field; wgt, bgt or qgt has"),
        ("compressor: {kind: wqt, tau: 1}", [], "compressor.kind = wqt: choose none, wgt, bgt or qgt"),
        ("data: {kind: cifar}", [], "data.kind = cifar: choose mnist5k, digits, mnist, synthetic or custom"),
        ("data: {kind: mnist}", [], "data.path: is missing"),
        ("seeed: 1", [], "seeed: no such field; did you mean seed?"),
        ("training: {epochs: 0}", [], "training.epochs = 0: input should be greater than or equal to 1"),
        ("training: {epochs: many}", [], "training.epochs = many: input should be a valid integer"),
        ("model: {kind: custom, factory: nonsense}", [], "model.factory = nonsense"),
        ("", ["--compressor.tao", "1"], "--compressor.tao: no such field; did you mean compressor.tau?"),
        ("", ["--workers.count", "0"], "workers.count = 0"),
        ("", ["--seed"], "--seed: expected one argument"),
        ("- a list", [], "holds a list; a spec is a mapping of fields"),
        ("a: [", [], "is no YAML"),
    ],
)
def test_what_is_wrong_is_said_with_field_value_and_what_would_do(problems, text, overrides, said):
    (problem,) = problems(text, *overrides)
    assert said in problem


def test_all_problems_are_said_at_once(problems):
    assert len(problems("seeed: 1\ntraining: {epochs: 0, batch_size: x}\n")) == 3


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere\.yaml: no such file"):
        read_spec(tmp_path / "nowhere.yaml")


@given(st.floats(min_value=1e-37, max_value=1e30))
def test_any_sensible_tau_survives_the_way_to_the_workers(tau):
    spec = RunSpec.model_validate({"compressor": {"kind": "qgt", "tau": tau}})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_fingerprint_is_of_the_computation_alone():
    spec = RunSpec()
    same = RunSpec(name="other", experiment="elsewhere", storage=Path("/tmp/x"))
    assert spec.fingerprint() == same.fingerprint()
    assert spec.fingerprint() != RunSpec(seed=1).fingerprint()


def test_help_names_every_field_of_a_full_spec():
    named = {field.name for field in spec_fields()}
    assert set(RunSpec().flat()) <= named
    assert {"compressor.tau", "model.widths", "data.path"} <= named
    assert len(named) == len(spec_fields())
