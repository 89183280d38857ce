"""Specs: files, environment and command line, and what is said when they are wrong."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from taugrad.compressors.methods import read_config
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.models import Timm
from taugrad.platform.spec.reading import read_spec

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


pytestmark = pytest.mark.usefixtures("own_folder")


def test_an_empty_file_is_the_default_spec(read):
    assert read("") == RunSpec()


RUNS = sorted(path for path in EXPERIMENTS.glob("**/*.yaml") if path.parent.name != "search")


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_shipped_spec_is_valid(path):
    spec = read_spec(path)
    assert spec.experiment == yaml.safe_load(path.read_text())["experiment"]


def test_a_network_of_timm_is_given_by_its_name(read, monkeypatch):
    assert read("model: timm:resnet10t\n").model == Timm(name="resnet10t")
    fields = ["--model.arguments", '{"img_size": 64}']
    assert read("model: timm:resnet10t\n", *fields).model == Timm(
        name="resnet10t", arguments={"img_size": 64}
    )
    assert read("model: {kind: nin}\n", "--model", "timm:vit").model == Timm(name="vit")
    monkeypatch.setenv("TAUGRAD_MODEL", "timm:vgg11")
    assert read("seed: 1\n").model == Timm(name="vgg11")


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(read, monkeypatch):
    text = "seed: 1\ncompressor: {kind: wgt, tau: 0.1}\n"
    assert read(text).seed == 1
    monkeypatch.setenv("TAUGRAD_SEED", "2")
    monkeypatch.setenv("TAUGRAD_COMPRESSOR__TAU", "0.2")
    assert (read(text).seed, read(text).compressor.tau) == (2, 0.2)
    spec = read(text, "--seed", "3", "--compressor.tau", "3e-1")
    assert (spec.seed, spec.compressor.tau, spec.compressor.kind) == (3, 0.3, "wgt")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("WORKERS__CONT", "3", "TAUGRAD_WORKERS__CONT: workers.cont: no such field; did you mean workers.c"),
        ("WORKERS__COUNT", "two", "TAUGRAD_WORKERS__COUNT: workers.count = two: input should be a"),
        ("WORKERS", '{"count": 0}', "TAUGRAD_WORKERS: workers.count = 0: input should be greater"),
        ("WORKERS", "{count: 1", "TAUGRAD_WORKERS: workers = {count: 1: is not valid YAML: "),
        ("COMPRESSOR__TAU", "abc", "TAUGRAD_COMPRESSOR__TAU: compressor.tau = abc: not a number, and not"),
        ("COMPRESSOR__KIND", "foo", "TAUGRAD_COMPRESSOR__KIND: compressor.kind = foo: choose none"),
        ("SEEED", "1", "TAUGRAD_SEEED: no such field; did you mean TAUGRAD_SEED?"),
        ("WORKERS_COUNT", "1", "TAUGRAD_WORKERS_COUNT: no such field; did you mean TAUGRAD_WORKERS__COUNT?"),
    ],
)
def test_what_comes_from_the_environment_is_not_blamed_on_the_file(read, monkeypatch, variable, value, said):
    monkeypatch.setenv("TAUGRAD_ANOTHER", "1")
    monkeypatch.setenv(f"TAUGRAD_{variable}", value)
    with pytest.raises(SpecError) as refusal:
        read("seed: 1\ncompressor: wgt(1)\n")
    assert str(refusal.value).startswith(said)
    assert "\n" not in str(refusal.value)


def test_all_problems_are_said_at_once_and_each_names_where_it_comes_from(read, monkeypatch, tmp_path):
    monkeypatch.setenv("TAUGRAD_SEED", "-1")
    with pytest.raises(SpecError) as refusal:
        read("seeed: 1\ntraining: {epochs: 0, batch_size: x}", "--workers.count", "0")
    begins = [line.partition(": ")[0] for line in str(refusal.value).splitlines()]
    assert sorted(begins) == sorted(["TAUGRAD_SEED", "command line", *[str(tmp_path / "spec.yaml")] * 3])


def test_variables_that_resemble_no_field_are_left_alone(read, monkeypatch):
    monkeypatch.setenv("TAUGRAD_TRACEBACK", "1")
    monkeypatch.setenv("TAUGRAD_SEARCH__TRIALS", "many")
    assert read("") == RunSpec()


# Compressors: as fields, as a line, as both.


@pytest.mark.parametrize(
    ("text", "overrides", "line"),
    [
        ("compressor: wgt(1e-3) | quantile(4) | golomb_rice", [], "wgt(1e-3) | quantile(4) | golomb_rice"),
        ("compressor: |\n  wgt(1e-3)\n  | linear\n", [], "wgt(1e-3) | linear"),
        ("", ["--compressor", "strom(1e-3) | golomb_rice"], "strom(1e-3) | golomb_rice"),
        ("", ["--compressor", '{"kind": "wgt", "tau": 1}'], "wgt(1)"),
        # A whole method takes the place of another; single fields come on top, wherever they stand.
        ("compressor: topk(0.1)", ["--compressor", "wgt(1e-3)"], "wgt(1e-3)"),
        ("compressor: topk(0.1) | linear", ["--compressor", '{"kind": "wgt", "tau": 1}'], "wgt(1)"),
        ("compressor: wgt(1e-3) | linear", ["--compressor.tau", "5e-3"], "wgt(5e-3) | linear"),
        ("compressor: wgt(1e-3) | linear", ["--compressor.quantize.bits", "4"], "wgt(1e-3) | linear(4)"),
        ("compressor: wgt(1e-3)", ["--compressor.quantize", "linear(4)"], "wgt(1e-3) | linear(4)"),
        ("compressor: wgt(1e-3)", ["--compressor.codec", "bitmap"], "wgt(1e-3) | bitmap"),
        ("", ["--compressor", "wgt(1e-3)", "--compressor.tau", "2e-3"], "wgt(2e-3)"),
        ("", ["--compressor", "wgt(1e-3) | linear", "--compressor", "bgt(3)"], "bgt(3)"),
        # Policies.
        ("compressor: {kind: wgt, tau: density(0.01)}", [], "wgt(density(0.01))"),
        ("compressor: {kind: wgt, tau: 'schedule({0: 1e-3})'}", [], "wgt(schedule({0: 1e-3}))"),
        ("compressor: wgt(1e-3)", ["--compressor.tau", "density(0.02)"], "wgt(density(0.02))"),
        ("compressor: wgt(density(0.02))", ["--compressor.tau", "1e-3"], "wgt(1e-3)"),
        ("compressor: wgt(density(0.1))", ["--compressor.tau.target", "0.2"], "wgt(density(0.2))"),
        (
            "compressor: {kind: bgt, tau: {kind: layers, default: 1e-3, patterns: {a: density(0.1), b: 1}}}",
            [],
            "bgt(layers(1e-3, patterns={'a': density(0.1), 'b': 1}))",
        ),
        (
            "compressor: wgt(1e-3)",
            ["--compressor.exempt.names", '["*.bias", "norm*"]', "--compressor.exempt.smaller_than", "9"],
            "wgt(1e-3, exempt=exempt(names=['*.bias', 'norm*'], smaller_than=9))",
        ),
        (
            "compressor: topk(0.1, momentum=0.9)\ntraining: {optimizer: {momentum: 0}}",
            [],
            "topk(0.1, momentum=0.9)",
        ),
    ],
)
def test_a_compressor_is_read_from_lines_and_fields(read, text, overrides, line):
    spec = read(text, *overrides)
    assert spec.compressor == read_config(line)
    assert spec.title == str(read_config(line))
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_long_line_is_cut_to_the_length_of_a_name(read):
    patterns = {f"layers.{layer}.weight": 1e-3 for layer in range(20)}
    spec = read(f"compressor: {{kind: wgt, tau: {{kind: layers, default: 1e-3, patterns: {patterns}}}}}")
    assert len(str(spec.compressor)) > len(spec.title) == 200


def test_a_compressor_is_read_from_the_environment(read, monkeypatch):
    monkeypatch.setenv("TAUGRAD_COMPRESSOR", "wgt(1e-3) | linear")
    assert str(read("").compressor) == "wgt(tau=0.001) | linear"
    assert str(read("compressor: topk(0.1)").compressor) == "wgt(tau=0.001) | linear"
    assert str(read("compressor: topk(0.1)", "--compressor", "bgt(1)").compressor) == "bgt(tau=1)"
    monkeypatch.setenv("TAUGRAD_COMPRESSOR", "wgt(1e-3) | zip")
    with pytest.raises(SpecError, match="zip is unknown"):
        read("")
    monkeypatch.delenv("TAUGRAD_COMPRESSOR")
    monkeypatch.setenv("TAUGRAD_COMPRESSOR__KIND", "bgt")
    monkeypatch.setenv("TAUGRAD_COMPRESSOR__TAU", "density(0.1)")
    assert str(read("").compressor) == "bgt(tau=density(target=0.1))"
    assert str(read("", "--compressor", "linear").compressor) == "linear"


def test_a_missing_file_is_named(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("specs")
    with pytest.raises(SpecError, match=r"nowhere\.yaml: no such file$"):
        read_spec(tmp_path / "nowhere.yaml")
    (tmp_path / "2-wgt.yaml").write_text("")
    with pytest.raises(SpecError, match=r"2-wgt\.yml: no such file; did you mean .*2-wgt\.yaml\?"):
        read_spec(tmp_path / "2-wgt.yml")
    with pytest.raises(SpecError, match=r"fields are set as --training\.epochs 3"):
        read_spec(Path("training.epochs=3"))
    with pytest.raises(SpecError, match=r"is a folder; give its files, .*/\*\.yaml"):
        read_spec(tmp_path)
    (tmp_path / "model.pt").write_bytes(b"\x80\xff")
    with pytest.raises(SpecError, match=r"model\.pt: is not text"):
        read_spec(tmp_path / "model.pt")


@given(st.floats(min_value=1e-37, max_value=1e30))
def test_any_sensible_tau_survives_the_way_to_the_workers(tau):
    spec = RunSpec.model_validate({"compressor": {"kind": "qgt", "tau": tau}})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


ENCRYPTED = {
    "sync": {"mode": "gradients", "pattern": "sharded", "authenticated": True},
    "compressor": "wgt(1)",
}


@pytest.mark.parametrize(
    ("fields", "without", "params"),
    [
        (
            {"name": "other", "experiment": "elsewhere", "storage": "/tmp/x"},
            {},
            {"name", "experiment", "storage"},
        ),
        ({"publish": {"path": "weights"}}, {}, {"publish.path"}),
        (
            ENCRYPTED,
            ENCRYPTED | {"sync": {"mode": "gradients", "pattern": "sharded"}},
            {"sync.authenticated"},
        ),
    ],
    ids=["names", "publish", "encryption"],
)
def test_what_computes_nothing_else_changes_no_fingerprint(fields, without, params):
    spec, other = RunSpec.model_validate(fields), RunSpec.model_validate(without)
    assert spec.fingerprint() == other.fingerprint()
    assert params <= {name for name, value in spec.flat().items() if value != other.flat().get(name)}


def test_fields_of_the_computation_change_the_fingerprint():
    def of(**sync):
        return RunSpec.model_validate({"sync": sync}).fingerprint()

    assert RunSpec().fingerprint() == of(mode="gradients") == "64a3aa3941de"
    fingerprints = {RunSpec(seed=1).fingerprint(), RunSpec().fingerprint()}
    fingerprints |= {
        of(mode="weights", every=4, **more) for more in ({}, {"quorum": 0.75}, {"delay_steps": 1})
    }
    assert len(fingerprints) == 5


def test_groups_of_fields_that_a_mode_has_not_are_no_params():
    plain, with_one = (
        RunSpec.model_validate({"sync": {"mode": "weights", **fields}}).flat()
        for fields in ({}, {"every": 4, "quorum": 0.75})
    )
    absent = ("sync.quorum", "sync.deadline", "sync.schedule", "publish")
    assert not [name for name in plain if name.startswith(absent)]
    assert with_one["sync.quorum"] == "0.75"
