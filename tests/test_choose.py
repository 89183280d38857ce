"""docs/choose.md: its boxes are valid specs, and those of commands; and who is warned."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import yaml
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
EVERY_STEP = "Every step must be exchanged, and the optimizer is SGD or LARS"


def test_the_methods_of_the_page_are_those_that_commands_print():
    numbered = re.findall(r"^### \d\. (.+)$", PAGE, re.MULTILINE)
    assert numbered == [method.when for method in METHODS]
    for method in METHODS:
        assert f"```yaml\n{chr(10).join(method.use)}\n```" in SECTIONS[method.when]
    assert BOXES[SITES]["sync"] == USUAL.sync(WORKERS, pattern_of(4, 0.001, 2))
    assert BOXES[MANY_WORKERS]["sync"] == USUAL.sync(WORKERS, pattern_of(8, 0.0049))
    assert BOXES[LONG_LINK]["sync"] == USUAL.sync(WORKERS, pattern_of(8, 0.005))
    assert f"{CLEARLY:g} times faster to a target" in PAGE


def test_each_call_for_a_loop_of_ones_own_says_what_the_box_says():
    functions = {function.__name__: function for function in (LocalSteps, compress_gradients)}
    calls = {case: re.findall(r"```python\n(.+?)```", text, re.DOTALL) for case, text in SECTIONS.items()}
    assert {ADAM, SGD, EVERY_STEP} <= {case for case, found in calls.items() if found}
    for case, found in calls.items():
        for call in found:
            (called,) = ast.parse(call).body
            given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in called.value.keywords}
            line = given.get("method") or ast.literal_eval(called.value.args[-1])
            spec = RunSpec.model_validate(BOXES[case])
            assert spec.compressor == read_config(line)
            inspect.signature(functions[called.value.func.id]).bind(*called.value.args, **given)
            fields = {name: value for name, value in given.items() if name != "method"}
            fields |= {"unsent": 1 / WORKERS} if fields.get("unsent") == "1/n" else {}
            assert {name: getattr(spec.sync, name) for name in fields} == fields


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
            mended = RunSpec.model_validate(tree | yaml.safe_load("\n".join(lines)))
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
    monkeypatch.setattr(linking, "uncompressed", stop)
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
