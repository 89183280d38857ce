"""The page that decides: its advice makes valid specs, its figures are the results'; and who is warned."""

import ast
import inspect
import itertools
import re
import sys
from pathlib import Path

import pytest
import yaml
from cases import in_turn

from taugrad import cli
from taugrad.commands.shared import warn_once
from taugrad.compressors import LocalSteps, compress_gradients
from taugrad.compressors.method import read_config
from taugrad.platform.launching import command as training
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import WeightsSync
from taugrad.search import command as searching
from taugrad.search.advice import (
    ADAPTIVE,
    BESIDES,
    METHODS,
    WORKERS,
    WORTH_KNOWING,
    is_per_step_sparse,
    warning_of,
)
from taugrad.search.auto_link import command as linking
from taugrad.search.plan import command as planning

DOCS = Path(__file__).parent.parent / "docs"
ADVICE = {method.name: method for method in (*METHODS, *BESIDES, *WORTH_KNOWING)}


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


@in_turn("name", [name for name, method in ADVICE.items() if not method.use[0].startswith("taugrad")])
def test_what_is_advised_is_a_valid_spec(name):
    RunSpec.model_validate(yaml.safe_load("\n".join(ADVICE[name].use)))


def test_each_method_has_a_call_for_ones_own_loop(make_choose):
    functions = {function.__name__: function for function in (LocalSteps, compress_gradients)}
    calls = {name: make_choose.in_a_loop(method) for name, method in ADVICE.items()}
    assert {"adaptive optimizer", "sgd", "every step"} <= {name for name, text in calls.items() if text}
    for name, text in calls.items():
        for call in re.findall(r"```python\n(.+?)```", text, re.DOTALL):
            (called,) = ast.parse(call).body
            given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in called.value.keywords}
            line = given.get("compressor") or ast.literal_eval(called.value.args[-1])
            spec = RunSpec.model_validate(yaml.safe_load("\n".join(ADVICE[name].use)))
            assert spec.compressor == read_config(line)
            inspect.signature(functions[called.value.func.id]).bind(*called.value.args, **given)
            assert {
                gradients: getattr(spec.sync, gradients) for gradients in given if gradients != "compressor"
            } == {name: value for name, value in given.items() if name != "compressor"}


def advised(adaptive, rate, delay, workers, sites, precision):
    """The boxes that a reader comes to: a method, and what is set in addition."""
    if rate > 1e9:
        return [ADVICE[name] for name in ("fast link", *["fp16"] * (precision == "fp16"))]
    names = ["adaptive optimizer" if adaptive else "sgd"]
    if sites > 1:
        names.append("sites")
    elif delay >= 0.005:
        names.append("long link")
    elif workers >= 8:
        names.append("many workers")
    return [ADVICE[name] for name in (*names, *["fp16"] * (precision == "fp16"))]


def applied(tree, advice):
    """A spec's tree with boxes pasted into it: fields of `training` one by one, others as a whole."""

    def merged(tree, changes):
        return tree | {
            name: merged(tree.get(name) or {}, value) if isinstance(value, dict) else value
            for name, value in changes.items()
        }

    for advised in advice:
        for name, value in advised.fields.items():
            tree = tree | {name: merged(tree.get(name, {}), value) if name == "training" else value}
    return tree


OWN_SPECS = (
    {},
    {"compressor": "wgt(0.01)", "sync": {"mode": "gradients", "pattern": "ring"}},
    {
        "compressor": "topk(0.01, momentum=0.9)",
        "sync": {"mode": "gradients", "pattern": "sharded", "back": "linear(8)"},
    },
    {"compressor": "powersgd(4)"},
    {"sync": {"mode": "weights", "exchange": "weights", "every": 7}},
)
OPTIMIZERS = [{"kind": kind, "lr": 0.001} for kind in ("sgd", "lars", *ADAPTIVE)]


@in_turn("optimizer", OPTIMIZERS)
def test_boxes_compose(optimizer):
    """All combinations of conditions: box after box is a spec that says what each of its boxes says."""
    kind = optimizer["kind"]
    cases = itertools.product((1e9, 1e10), (0.0049, 0.005), (7, 8), (1, 2), ("fp32", "fp16"))
    for rate, delay, workers, sites, precision in cases:
        advice = advised(kind in ADAPTIVE, rate, delay, workers, sites, precision)
        _check_composed(advice, optimizer, precision)


def _check_composed(advice, optimizer, precision):
    for fields in OWN_SPECS:
        tree = {"training": {"optimizer": optimizer}, "workers": {"count": WORKERS}} | fields
        so_far, compressor = tree, None
        for number, box in enumerate(advice, start=1):
            pasted = yaml.safe_load("\n".join(box.use))  # what a reader copies
            so_far = applied(so_far, [box])
            assert all(so_far[name] == value for name, value in pasted.items() if name != "training")
            assert so_far == applied(tree, advice[:number])
            spec = RunSpec.model_validate(so_far)
            compressor = compressor or spec.compressor
        spec = RunSpec.model_validate(applied(tree, advice))
        assert spec.compressor == compressor  # no box undoes another one
        if precision == "fp16":
            assert spec.training.precision == "fp16"
        if spec.compressor.kind == "none":
            assert spec.sync.mode == "gradients"
            continue
        assert isinstance(spec.sync, WeightsSync)
        assert spec.sync.unsent == pytest.approx(1 / WORKERS, rel=1e-5)
        more = WORKERS**0.5 if optimizer["kind"] in ADAPTIVE else 1
        assert spec.training.optimizer.lr == pytest.approx(0.001 * more, rel=1e-5)
        assert not warning_of([("a.yaml", spec)])


ADAMW = {"training": {"optimizer": {"kind": "adamw", "lr": 0.001}}, "workers": {"count": 4}}


@in_turn("line", ["wgt(0.01)", "bgt(0.1)", "qgt(0.1)", "strom(density(0.01))", "topk(0.01)", "chunked_topk"])
def test_adaptive_optimizers_with_a_threshold_on_each_steps_gradients_are_warned_of(line):
    patterns = ("allgather", "ring", "parameter_server", "sharded")
    syncs = [{"mode": "gradients", "pattern": pattern} for pattern in patterns]
    for sync in (*syncs, {"mode": "simulated"}):
        for kind in (*ADAPTIVE, "sgd"):
            optimizer = {"kind": kind, "lr": 0.001}
            tree = ADAMW | {"training": {"optimizer": optimizer}, "compressor": line, "sync": sync}
            spec = RunSpec.model_validate(tree)
            said = warning_of([("a.yaml", RunSpec()), ("b.yaml", spec), ("c.yaml", spec)])
            assert is_per_step_sparse(spec)
            if kind == "sgd":
                assert not said
                continue
            head, *lines = said.splitlines()
            assert said.count("warning: ") == 1
            assert f"warning: b.yaml: training.optimizer.kind = {kind} with compressor.kind = " in head
            assert f"sync.mode = gradients{', simulated' if sync['mode'] == 'simulated' else ''}:" in head
            mended = RunSpec.model_validate(applied(tree, []) | yaml.safe_load("\n".join(lines)))
            assert mended.training.optimizer.lr == pytest.approx(0.002)  # the root of 4 workers
            chosen = mended.sync.of if sync["mode"] == "simulated" else mended.sync
            assert chosen == WeightsSync(every=4, unsent=0.25)
            assert not warning_of([("b.yaml", mended)])


@in_turn("line", ["none", "fp16", "linear(8)", "linear(4)", "powersgd(4)"])
def test_what_sends_every_element_needs_no_warning(line):
    assert not warning_of([("a.yaml", RunSpec.model_validate(ADAMW | {"compressor": line}))])


# The warning, by commands


SPEC = {
    "data": {"kind": "digits"},
    "model": {"kind": "mlp", "widths": [8]},
    "training": {"epochs": 1, "optimizer": {"kind": "adamw", "lr": 0.01}},
    "compressor": "wgt(0.01)",
    "workers": {"count": 4, "cpus": 0.25},
}
SET = (
    "    sync: {mode: weights, every: 4, unsent: 0.25}\n"
    '    compressor: "strom(density(0.1, every=1)) | golomb_rice"\n'
    "    training: {optimizer: {kind: adamw, lr: 0.02}}\n"
)


class Begun(Exception):
    """Workers, measurements or trials would start now."""


def stop(*_, **__):
    raise Begun


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in (training, searching, linking):
        monkeypatch.setattr(module, "check", lambda *_, **__: None)
    for module in (training, searching):
        monkeypatch.setattr(module, "probe", lambda *_, **__: None)
    warn_once.cache_clear()
    monkeypatch.setattr(training, "_started", stop)
    monkeypatch.setattr(searching, "_check", lambda *_: None)
    monkeypatch.setattr(searching, "_alone", stop)
    monkeypatch.setattr(linking, "_find", stop)
    monkeypatch.setattr(planning, "calibrated", stop)
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "FILE"],
        ["train", "FILE", "FILE"],
        ["plan", "FILE", "--link", "100mbit", "--workers", "2,4"],
        ["auto", "FILE", "--link", "100mbit", "--target", "loss=1", "--plan-only"],
        ["search", "FILE"],
    ],
    ids=lambda arguments: f"{arguments[0]} {len(arguments)}",
)
def test_every_command_warns_once_and_says_what_to_set(arguments, file, tmp_path, capsys):
    if arguments[0] == "search":
        space = SPEC | {"compressor": {"kind": {"choice": ["wgt", "bgt"]}, "tau": {"log": [1e-4, 1e-1]}}}
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(space))
    for kind, said in (("adamw", 1), ("sgd", 0)):
        line = [file if argument == "FILE" else argument for argument in arguments]
        with pytest.raises(Begun):
            cli.main([*line, "--training.optimizer.kind", kind])
        printed = capsys.readouterr().out
        assert printed.count("warning: ") == said
        assert (SET in printed) == bool(said)


def test_trainings_of_one_command_warn_once(file, capsys):
    """`taugrad auto` trains several."""
    for _ in range(3):
        with pytest.raises(Begun):
            cli.main(["train", file])
    assert capsys.readouterr().out.count("warning: ") == 1
