"""docs/choose.md: its boxes are valid specs, its figures those of the results; and who is warned."""

import ast
import inspect
import itertools
import re
from pathlib import Path

import pytest
import yaml
from benchmarks.harness.pages import cell, results_of
from cases import in_turn

from taugrad import cli
from taugrad.commands.shared import warn_once
from taugrad.compressors import LocalSteps, compress_gradients
from taugrad.compressors.methods import read_config
from taugrad.platform.launching.driver import train as training
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.synchronization import WeightsSync
from taugrad.search import run_search as searching
from taugrad.search.advice import (
    ADAPTIVE,
    CLEARLY,
    METHODS,
    USUAL,
    WORKERS,
    is_per_step_sparse,
    pattern_of,
    warning_of,
)
from taugrad.search.auto_link import run_auto_link as linking
from taugrad.search.plan import run_plan as planning

PAGE = (Path(__file__).parent.parent / "docs/choose.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (?:\d\. )?(.+?)\n(.+?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
"""Cases, by their headings."""
BOXES = {
    case: yaml.safe_load(box[1])
    for case, text in SECTIONS.items()
    if (box := re.search(r"```yaml\n(.+?)```", text, re.DOTALL))
}
"""What a reader copies into a spec."""
ADAM, SGD = (method.when for method in METHODS[1:])
SITES = "Workers are at several sites, connected by a slow link"
MANY_WORKERS = "There are 8 workers or more at one site, and the delay is less than 5 ms"
LONG_LINK = "Workers are at one site, and the link's delay is 5 ms one way or more"
FP16 = "You train in fp16"
EVERY_STEP = "Every step must be exchanged, and the optimizer is SGD or LARS"
FIGURES = {
    "The slowest link is faster than 1 Gbit/s": [
        ("quickstart", "none", "time s"),
        ("quickstart", "wgt", "time s"),
    ],
    "The optimizer is Adam, AdamW, LAMB or Muon": [
        ("adamw", "auto: every 4, 10%, rate 0.00282843", "more than 16 bits at 2e-3 (95%)"),
        ("adamw", "auto: every 4, 10%, rate 0.00282843", "than 16 bits"),
        ("adamw", "gradients, 1%", "more than 16 bits at 2e-3 (95%)"),
        ("language", "auto: every 4, 10%, rate 0.004", "more than float32 (95%)"),
        ("network_target_gpt", "`strom`, every 4", "times faster than 16 bits"),
        ("network_target_gpt", "SparseLoCo, every 4", "times faster than 16 bits"),
        ("network_target_gpt", "DiLoCo, every 30, 8 bits", "times faster than 16 bits"),
        ("network_target_slow", "`strom`, every 4", "times faster than 16 bits"),
        ("network_target_slow", "SparseLoCo, every 6", "times faster than 16 bits"),
        ("network_target_slow", "MuLoCo, every 30, 4 bits", "times faster than 16 bits"),
    ],
    "The optimizer is SGD, with or without momentum, or LARS": [],
    "Workers are at several sites, connected by a slow link": [
        ("network_sites", "2 / 50mbit,20ms / * / `exact`", "ms a step"),
        ("network_sites", "2 / 50mbit,20ms / * / `hierarchical`", "ms a step"),
    ],
    "There are 8 workers or more at one site, and the delay is less than 5 ms": [
        ("synchronization", "allgather / 64 / simulated", "1%, kB"),
        ("synchronization", "sharded / 64 / simulated", "1%, kB"),
    ],
    "Workers are at one site, and the link's delay is 5 ms one way or more": [
        ("network_exchange", "100mbit,20ms / 4 / * / `strom(density(0.01)) \\| golomb_rice`", "ms"),
        ("network_exchange", "100mbit,20ms / 4 / * / `powersgd`", "ms"),
        ("network_exchange", "100mbit,20ms / 4 / * / `fp16`", "ms"),
    ],
    "Every step must be exchanged, and the optimizer is SGD or LARS": [
        ("network_exchange", "100mbit,0ms / 4 / * / `strom(density(0.01)) \\| golomb_rice`", "than fp16"),
        ("network_exchange", "100mbit,0ms / 4 / * / `wgt(density(0.01))`", "than fp16"),
        ("network_exchange", "100mbit,0ms / 4 / * / `powersgd`", "than fp16"),
    ],
    "You do not know which threshold keeps your accuracy": [
        ("thresholds", "0.5 points", "allocate(0.003)"),
        ("thresholds", "0.5 points", "allocate(0.03)"),
        ("thresholds", "2 points", "allocate(0.003)"),
        ("thresholds", "2 points", "allocate(0.03)"),
        ("thresholds", "4 points", "allocate(0.003)"),
        ("thresholds", "4 points", "allocate(0.03)"),
        ("thresholds", "resnet, digits", "allocate(0.003)"),
        ("thresholds", "resnet, speech", "allocate(0.003)"),
    ],
    "Workers take turns at being slow, and the optimizer is SGD or LARS": [
        ("asynchronous", "now and then / 4.00", "speed-up"),
        ("asynchronous", "one / 4.00", "speed-up"),
    ],
    "Most parameters are in fully connected layers (AlexNet, VGG)": [
        ("hybrid", "alexnet / 2 real / 8 / hybrid b, fp32", "received, MB"),
        ("hybrid", "alexnet / 2 real / 8 / data parallel, sharded", "received, MB"),
    ],
    "The training should change as little as possible": [
        ("language", "`linear`, 8 bits", "more than float32 (95%)"),
        ("language", "`linear`, 8 bits", "than float32"),
    ],
}
"""The figures of each case, in the order of the page: benchmark, row and column of its newest results."""


def test_the_methods_of_the_page_are_those_that_commands_print():
    numbered = re.findall(r"^### \d\. (.+)$", PAGE, re.MULTILINE)
    assert numbered == [method.when for method in METHODS]
    for method in METHODS:
        assert f"```yaml\n{chr(10).join(method.use)}\n```" in SECTIONS[method.when]
    assert BOXES[SITES]["sync"] == USUAL.sync(WORKERS, pattern_of(4, 0.001, 2))
    assert BOXES[MANY_WORKERS]["sync"] == USUAL.sync(WORKERS, pattern_of(8, 0.0049))
    assert BOXES[LONG_LINK]["sync"] == USUAL.sync(WORKERS, pattern_of(8, 0.005))
    assert f"{CLEARLY:g} times faster to a target" in PAGE


@in_turn("case", FIGURES)
def test_figures_are_those_of_the_newest_results(case):
    place = 0
    _, measured = SECTIONS[case].split("*Measured:* ")
    for address in FIGURES[case]:
        figure = cell(*address)
        found = measured.find(figure, place)
        assert found >= 0, f"{address}: {figure}"
        place = found + len(figure)
        assert f"(results/{results_of(address[0]).name})" in PAGE


@in_turn("case", BOXES)
def test_what_is_advised_is_a_valid_spec(case):
    RunSpec.model_validate(BOXES[case])


def test_each_call_for_a_loop_of_ones_own_says_what_the_box_says():
    functions = {function.__name__: function for function in (LocalSteps, compress_gradients)}
    calls = {case: re.findall(r"```python\n(.+?)```", text, re.DOTALL) for case, text in SECTIONS.items()}
    assert {ADAM, SGD, EVERY_STEP} <= {case for case, found in calls.items() if found}
    for case, found in calls.items():
        for call in found:
            (called,) = ast.parse(call).body
            given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in called.value.keywords}
            line = given.get("compressor") or ast.literal_eval(called.value.args[-1])
            spec = RunSpec.model_validate(BOXES[case])
            assert spec.compressor == read_config(line)
            inspect.signature(functions[called.value.func.id]).bind(*called.value.args, **given)
            fields = {name: value for name, value in given.items() if name != "compressor"}
            fields |= {"unsent": 1 / WORKERS} if fields.get("unsent") == "1/n" else {}
            assert {name: getattr(spec.sync, name) for name in fields} == fields


def advised(adaptive, rate, delay, workers, sites, precision):
    """The boxes that a reader comes to: a method, and what is set in addition."""
    if rate > 1e9:
        return [BOXES[name] for name in (METHODS[0].when, *[FP16] * (precision == "fp16"))]
    names = [ADAM if adaptive else SGD]
    if sites > 1:
        names.append(SITES)
    elif delay >= 0.005:
        names.append(LONG_LINK)
    elif workers >= 8:
        names.append(MANY_WORKERS)
    return [BOXES[name] for name in (*names, *[FP16] * (precision == "fp16"))]


def applied(tree, boxes):
    """A spec's tree with boxes pasted into it: fields of `training` one by one, others as a whole."""

    def merged(tree, changes):
        return tree | {
            name: merged(tree.get(name) or {}, value) if isinstance(value, dict) else value
            for name, value in changes.items()
        }

    for box in boxes:
        for name, value in box.items():
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
            so_far = applied(so_far, [box])
            assert all(so_far[name] == value for name, value in box.items() if name != "training")
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
