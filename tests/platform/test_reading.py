"""Specs: files, environment and command line, and what is said when they are wrong."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from taugrad.compressors.config import read_config
from taugrad.platform.data.shape import Shape
from taugrad.platform.models import build
from taugrad.platform.models.config import Mlp, Timm
from taugrad.platform.preflight import check
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.fields import spec_fields
from taugrad.platform.spec.reading import read_spec

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in ("TAUGRAD_SEED", "TAUGRAD_COMPRESSOR", "TAUGRAD_COMPRESSOR__TAU", "TAUGRAD_COMPRESSOR__KIND"):
        monkeypatch.delenv(name, raising=False)


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
        (
            "compressor: {kind: wgt, tau: .inf}",
            [],
            "tau = inf: is not a threshold that float32 can hold",
        ),
        (
            "compressor: wgt(1e40)",
            [],
            "is not a threshold that float32 can hold (1.2e-38 to 6.6e+35)",
        ),
        ("compressor: {kind: wgt, tau: [1]}", [], "tau = [1]: give a number, or a policy with its fields in"),
        ("compressor: {kind: WGT}", [], "or fp8; did you mean wgt?"),
        ("compressor: wgtt(1)", [], "; did you mean wgt?"),
        (
            "compressor: {kind: topk}",
            [],
            "compressor.density: is missing (The share of a parameter",
        ),
        ("model: mlp", [], "model = mlp: give model.kind, as {kind: mlp} in a file or --model.kind mlp"),
        (
            "data: cifar",
            [],
            "or --data.kind mnist5k; the choices are mnist5k, digits, mnist, synthetic, text, ",
        ),
        ("workers:", [], "workers: is empty; indent its fields below it, or leave it out"),
        ("workers: {count: two}", [], "workers.count = two: input should be a valid integer"),
        ("workers: {device: cudda}", [], "input should be 'cpu' or 'cuda'; did you mean cuda?"),
        ("experiment: ''", [], "experiment = '': string should have at least 1 character"),
        ("storage: [x]", [], "storage = ['x']: give a folder's name"),
        (
            "lr: 0.1",
            [],
            "lr: no such field; did you mean training.optimizer.lr, training.pretraining.lr or "
            "sync.outer.lr?",
        ),
        (
            "data: {kind: custom, factory: 'a:b', arguments: {n: [1]}}",
            [],
            "data.arguments.n = [1]: give text, a number, true or false",
        ),
        ("model: {kind: custom, factory: mine.py}", [], "give package.module:function, such as mine:make of"),
        ("seed:1", [], "holds the text 'seed:1'; write fields as `name: value`"),
        ("seed: 1\nname: x\nseed: 2", [], "line 3, 'seed: 2': seed is given twice, first in line 1"),
        ("workers:\n\tcount: 1", [], "line 2, 'count: 1': a tab; indent with spaces"),
        (
            "workers:\n  count: 1\n   cpus: 1",
            [],
            "line 3, 'cpus: 1': mapping values are not allowed",
        ),
        ("", ["--epochs", "3"], "--epochs: no such field; did you mean training.epochs, training.schedule"),
        ("", ["-training.epochs", "3"], "-training.epochs: a field needs two dashes, --training.epochs"),
        ("", ["--training.batch-size", "3"], "did you mean training.batch_size?"),
        ("", ["--training", "{epochs: 3"], "training = {epochs: 3: is not valid YAML"),
        ("", ["--training", "3"], "training = 3: give its fields, epochs, "),
        ("", ["--data.kind", "custom", "--data.factory", "a:b", "--data.arguments", "x=1"], "{name: value}"),
        (
            "",
            ["--model.kind", "mlp", "--model.widths", "8", "--model.widths", "4"],
            "is there twice; give a l",
        ),
        ("", ["--model", "mlp"], "model = mlp: give model.kind"),
        ("compressor: {kind: wgt}", [], "compressor.tau: is missing"),
        ("compressor: {kind: none, tau: 1}", [], "kind none has no such field; wgt, bgt, qgt or strom has"),
        (
            "sync: {mode: ring, adapt: {wait: 0.1}}",
            [],
            "sync.adapt: kind ring has no such field; allgather or weights has",
        ),
        ("compressor: {kind: wqt, tau: 1}", [], "compressor.kind = wqt: choose none, powersgd, wgt, bgt"),
        ("data: {kind: cifar}", [], "parquet or custom; did you mean cifar10?"),
        ("data: {kind: mnist}", [], "data.path: is missing"),
        ("seeed: 1", [], "seeed: no such field; did you mean seed?"),
        ("training: {epochs: 0}", [], "training.epochs = 0: input should be greater than or equal to 1"),
        ("training: {epochs: many}", [], "training.epochs = many: input should be a valid integer"),
        ("model: {kind: custom, factory: nonsense}", [], "model.factory = nonsense"),
        ("", ["--compressor.tao", "1"], "--compressor.tao: no such field; did you mean compressor.tau?"),
        ("", ["--workers.count", "0"], "workers.count = 0"),
        ("", ["--seed"], "--seed: expected one argument"),
        ("- a list", [], "holds a list; a spec must be a mapping of fields"),
        ("a: [", [], "is not valid YAML"),
        ("compressor: wgt(schedule({0: 1}))", [], "text that holds ': ' must stand in quotes"),
    ],
)
def test_what_is_wrong_is_said_with_field_value_and_what_would_do(problems, text, overrides, said):
    (problem,) = problems(text, *overrides)
    assert said in problem


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "WORKERS__CONT",
            "3",
            "TAUGRAD_WORKERS__CONT: workers.cont: no such field; did you mean workers.c",
        ),
        (
            "WORKERS__COUNT",
            "two",
            "TAUGRAD_WORKERS__COUNT: workers.count = two: input should be a",
        ),
        ("WORKERS", '{"count": 0}', "TAUGRAD_WORKERS: workers.count = 0: input should be greater"),
        ("WORKERS", "{count: 1", "TAUGRAD_WORKERS: workers = {count: 1: is not valid YAML: "),
        (
            "COMPRESSOR__TAU",
            "abc",
            "TAUGRAD_COMPRESSOR__TAU: compressor.tau = abc: not a number, and not a policy",
        ),
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


def test_each_problem_names_where_it_comes_from(read, monkeypatch, tmp_path):
    monkeypatch.setenv("TAUGRAD_SEED", "-1")
    with pytest.raises(SpecError) as refusal:
        read("training: {epochs: 0}", "--workers.count", "0")
    begins = {line.partition(": ")[0] for line in str(refusal.value).splitlines()}
    assert begins == {"TAUGRAD_SEED", "command line", str(tmp_path / "spec.yaml")}


def test_variables_that_resemble_no_field_are_left_alone(read, monkeypatch):
    monkeypatch.setenv("TAUGRAD_TRACEBACK", "1")
    monkeypatch.setenv("TAUGRAD_SEARCH__TRIALS", "many")
    assert read("") == RunSpec()


# Compressors: as fields, as a line, as both.


@pytest.mark.parametrize(
    ("text", "overrides", "line"),
    [
        ("compressor: wgt(1e-3) | quantile(4) | golomb_rice", [], "wgt(1e-3) | quantile(4) | golomb_rice"),
        ("compressor: >\n  wgt(1e-3)\n  | linear\n  | huffman\n", [], "wgt(1e-3) | linear | huffman"),
        ("compressor: |\n  wgt(1e-3)\n  | linear\n", [], "wgt(1e-3) | linear"),
        ("", ["--compressor", "strom(1e-3) | golomb_rice"], "strom(1e-3) | golomb_rice"),
        ("", ["--compressor=strom(1e-3) | golomb_rice"], "strom(1e-3) | golomb_rice"),
        ("", ["--compressor", '{"kind": "wgt", "tau": 1}'], "wgt(1)"),
        # A whole method takes the place of another; single fields come on top, wherever they stand.
        ("compressor: topk(0.1)", ["--compressor", "wgt(1e-3)"], "wgt(1e-3)"),
        ("compressor: {kind: topk, density: 0.1}", ["--compressor", "none"], "none"),
        ("compressor: topk(0.1) | linear", ["--compressor", '{"kind": "wgt", "tau": 1}'], "wgt(1)"),
        ("compressor: wgt(1e-3) | linear", ["--compressor.tau", "5e-3"], "wgt(5e-3) | linear"),
        ("compressor: wgt(1e-3) | linear", ["--compressor.quantize.bits", "4"], "wgt(1e-3) | linear(4)"),
        ("compressor: wgt(1e-3)", ["--compressor.quantize.kind", "fp8"], "wgt(1e-3) | fp8"),
        ("compressor: wgt(1e-3)", ["--compressor.quantize", "linear(4)"], "wgt(1e-3) | linear(4)"),
        ("compressor: wgt(1e-3)", ["--compressor.quantize", "fp16"], "wgt(1e-3) | fp16"),
        ("compressor: wgt(1e-3)", ["--compressor.codec", "bitmap"], "wgt(1e-3) | bitmap"),
        ("", ["--compressor", "wgt(1e-3)", "--compressor.tau", "2e-3"], "wgt(2e-3)"),
        ("", ["--compressor.tau", "2e-3", "--compressor", "wgt(1e-3)"], "wgt(2e-3)"),
        ("", ["--compressor", "wgt(1e-3) | linear", "--compressor", "bgt(3)"], "bgt(3)"),
        # Policies.
        ("compressor: {kind: wgt, tau: density(0.01)}", [], "wgt(density(0.01))"),
        ("compressor: {kind: wgt, tau: 'schedule({0: 1e-3})'}", [], "wgt(schedule({0: 1e-3}))"),
        ("compressor: wgt(1e-3)", ["--compressor.tau", "density(0.02)"], "wgt(density(0.02))"),
        ("compressor: wgt(density(0.02))", ["--compressor.tau", "1e-3"], "wgt(1e-3)"),
        ("compressor: wgt(density(0.1))", ["--compressor.tau.target", "0.2"], "wgt(density(0.2))"),
        ("compressor: wgt(density(0.1))", ["--compressor.tau", "schedule({0: 1})"], "wgt(schedule({0: 1}))"),
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
        (
            "compressor: topk(0.1, momentum=0.9)\ntraining: {optimizer: {kind: adam}}",
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


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        (
            "compressor: wgt(1e-3) | huffman",
            [],
            "compressor = wgt(1e-3) | huffman: huffman encodes symbols, but wgt",
        ),
        (
            "compressor: wgt(1e-3) | zip",
            [],
            "compressor = wgt(1e-3) | zip: zip is unknown: choose none, powersgd",
        ),
        (
            "compressor: wgt(1e-3",
            [],
            "compressor = wgt(1e-3: 'wgt(1e-3' is not a chain such as wgt(tau=1e-3)",
        ),
        ("compressor: wgt(-1)", [], "compressor.tau = -1: must be greater than 0 (1.2e-38 to 6.6e+35)"),
        ("compressor: wgt(1, foo=3)", [], "compressor.foo: no such field"),
        ("compressor: wgt", [], "compressor.tau: is missing"),
        (
            "compressor: 3",
            [],
            "compressor = 3: give a line such as wgt(tau=1e-3) | golomb_rice, or kind and fields",
        ),
        ("compressor:", [], "compressor = None: give a line such as"),
        ("", ["--compressor", "wqt(1)"], "compressor = wqt(1): wqt is unknown: choose none, powersgd, wgt"),
        ("", ["--compressor"], "--compressor: expected one argument"),
        ("", ["--compressor", ""], "'' is not a chain such as"),
        (
            "compressor: wgt(1)",
            ["--compressor.tau.foo", "3"],
            "there are compressor.tau.kind, compressor.tau.points",
        ),
        (
            "compressor: wgt(1)",
            ["--compressor.tau", "density(2)"],
            "compressor.tau.target = 2: input should be less",
        ),
        (
            "compressor: wgt(1)",
            ["--compressor.tau", "densty(0.1)"],
            "compressor.tau = densty(0.1): densty is unknown: choose schedule, density, sidco, dl4j, "
            "allocate, law, layers",
        ),
        (
            "compressor: wgt(1)",
            ["--compressor.tau", "abc"],
            "tau = abc: not a number, and not a policy with its fields in brackets: schedule, density,",
        ),
        (
            "compressor: wgt(1)",
            ["--compressor.tau", "density(0.1"],
            "compressor.tau = density(0.1: not a number, and not a policy with its fields in brackets:",
        ),
        (
            "compressor: wgt(1)",
            ["--compressor.tau", "density(0.2, evry=1)"],
            "compressor.tau.evry: no such field; did you mean compressor.tau.every?",
        ),
        ("compressor: {kind: wgt, tau: {target: 1}}", [], "compressor.tau.kind: is missing"),
        (
            "compressor: {kind: wgt, tau: {kind: foo}}",
            [],
            "compressor.tau.kind = foo: choose schedule, density, sidco, dl4j, allocate, law or layers",
        ),
        (
            "compressor: \"wgt(layers(1, patterns={'a': 0}))\"",
            [],
            "compressor.tau.patterns.a = 0: must be greater than 0",
        ),
        (
            "compressor: \"wgt(layers(1, patterns={'a': density(3)}))\"",
            [],
            "compressor.tau.patterns.a.target = 3: input",
        ),
        (
            "compressor: {kind: wgt, tau: {kind: layers, default: 1, patterns: {a.b: density(3)}}}",
            [],
            "compressor.tau.patterns.a.b.target = 3: input",
        ),
        ("compressor: wgt(layers(1, patterns={}))", [], "compressor.tau.patterns = {}: needs 1 or more"),
        (
            "compressor: \"wgt(schedule({'a': 1}))\"",
            [],
            "compressor.tau.points.a = a: input should be a valid integer",
        ),
        ('compressor: "wgt(schedule({0: -1}))"', [], "compressor.tau.points.0 = -1: must be greater than 0"),
        ("compressor: {kind: wgt, tau: 1, clip: 3}", [], "compressor.clip = 3: give its fields, every, to"),
        (
            "compressor: wgt(1)",
            ["--compressor.clip.every", "0"],
            "compressor.clip.every = 0: input should be greater",
        ),
        (
            "compressor: wgt(1) | linear(30)",
            [],
            "compressor.quantize.bits = 30: input should be less than or equal",
        ),
        (
            "compressor: wgt(1) | quantile(4)",
            ["--compressor.quantize.kind", "fp16"],
            "compressor.quantize.bits: kind fp16 has no such field; linear or quantile has",
        ),
        (
            "compressor: wgt(1)",
            ["--compressor.quantize", "zip(3)"],
            "compressor.quantize = zip(3): zip is unknown",
        ),
        (
            "compressor: wgt(1)",
            ["--compressor.codec", "zip"],
            "compressor.codec = zip: input should be 'auto'",
        ),
        (
            "compressor: {kind: linear, exempt: {names: a}}",
            [],
            "compressor.exempt.names = a: give a list, such as [a]",
        ),
        ("compressor: {kind: chunked_topk, chunk: 100}", [], "compressor: chunk = 100 is not a power of two"),
        ("compressor: {kind: qgt, tau: 1, codec: raw, symbols: huffman}", [], "huffman cannot follow raw"),
        (
            "compressor: bgt(0.1, momentum=0.9)",
            [],
            "compressor.momentum = 0.9: the optimizer has momentum too, it would be applied twice; "
            "add training.optimizer.momentum: 0",
        ),
    ],
)
def test_what_is_wrong_with_a_compressor_is_said_in_one_line(problems, text, overrides, said):
    (problem,) = problems(text, *overrides)
    assert said in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("compressor", "said"),
    [
        (
            "wgt(1, exempt=exempt(names=['*.bias', 'nrom*']))",
            "compressor.exempt.names: 'nrom*' matches no parameter",
        ),
        (
            "linear(exempt=exempt(names=['Layers.*']))",
            "compressor.exempt.names: 'Layers.*' matches no parameter",
        ),
        (
            "bgt(layers(1, patterns={'*.bias': 2, 'conv': 3}))",
            "compressor.tau.patterns: 'conv' matches no parameter",
        ),
    ],
)
def test_a_pattern_that_fits_no_parameter_is_refused_before_anything_starts(compressor, said):
    fields = {"data": {"kind": "synthetic", "height": 4, "width": 4}, "model": {"kind": "mlp", "widths": [8]}}
    names = [name for name, _ in build(Mlp(widths=[8]), Shape.image(1, 4, 4, 10)).named_parameters()]
    with pytest.raises(SpecError) as refusal:
        check(RunSpec.model_validate(fields | {"compressor": compressor}), "here", local=True)
    (problem,) = refusal.value.problems
    assert said in problem
    assert names[0] in problem
    check(
        RunSpec.model_validate(fields | {"compressor": "wgt(1, exempt=exempt(names=['*.bias']))"}),
        "here",
        local=True,
    )


def test_all_problems_are_said_at_once(problems):
    assert len(problems("seeed: 1\ntraining: {epochs: 0, batch_size: x}\n")) == 3


def test_a_missing_file_is_named(tmp_path):
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


def test_the_fingerprint_is_of_the_computation_alone():
    spec = RunSpec()
    same = RunSpec(name="other", experiment="elsewhere", storage=Path("/tmp/x"))
    assert spec.fingerprint() == same.fingerprint()
    assert spec.fingerprint() != RunSpec(seed=1).fingerprint()


def test_a_field_that_came_later_leaves_fingerprints_as_they_were():
    def of(**sync):
        return RunSpec.model_validate({"sync": sync}).fingerprint()

    assert of(mode="sharded") == of(mode="sharded", overlap=True, buckets=1) == "a9acd1d65d67"
    assert of(mode="allgather") == of(mode="allgather", connections=1) == RunSpec().fingerprint()
    assert of(mode="simulated", of={"mode": "parameter_server"}) == "f085b27b050a"


def test_help_names_every_field_of_a_full_spec():
    named = {field.name for field in spec_fields()}
    assert set(RunSpec().flat()) <= named
    assert {"compressor.tau", "compressor.tau.target", "model.widths", "data.path"} <= named
    assert len(named) == len(spec_fields())


def test_help_is_short_about_kinds_and_defaults():
    fields = {field.name: field for field in spec_fields()}
    assert fields["compressor"].type == "LINE"
    assert fields["compressor.reduction"].kinds == ""
    assert fields["compressor.exempt.names"].kinds == "all but none, powersgd"
    assert fields["compressor.tau"].kinds == "wgt, bgt, qgt, strom"
    assert fields["compressor.tau.target"].kinds == "density, sidco, dl4j"
    assert fields["compressor.tau.target"].default == "required; dl4j: None"
    assert fields["compressor.decay"].default == "1.0; fp16, bf16: 0.0; chunked_topk: 0.95"
    assert fields["compressor.tau.kind"].default == ""
    assert fields["compressor.exempt.names"].type == "list"
    order = list(fields)
    assert order.index("compressor") < order.index("compressor.kind") < order.index("compressor.tau")
    assert order.index("compressor.tau") < order.index("compressor.tau.kind")
    assert not [name for name in fields if name.startswith("compressor.tau.default.")]
    assert not [field for field in fields.values() if "\n" in field.description]
