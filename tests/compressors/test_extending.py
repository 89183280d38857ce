"""docs/extending.md and its file: registered, run, trained with; wrong classes and names are refused."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cases import in_turn

from taugrad.cli import main
from taugrad.compressors import register
from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.fields import FAMILIES
from taugrad.compressors.methods import chain, read_config
from taugrad.compressors.methods.quantizers import Quantizer
from taugrad.compressors.methods.sparse import SparseMethod
from taugrad.compressors.methods.threshold import ThresholdedMethod
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.thresholds.base import Policy
from taugrad.platform.data import load
from taugrad.platform.spec import SpecError
from taugrad.platform.spec.allowing import allowed
from taugrad.platform.spec.reading import read_spec
from taugrad.platform.training.trainer import Trainer
from taugrad.search.reading import read_search

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_methods.py"
PAGE = ROOT / "docs" / "extending.md"


@contextmanager
def what_is_registered_is_forgotten() -> Iterator[None]:
    with ExitStack() as stack:
        for family in FAMILIES:
            stack.enter_context(patch.dict(family))
        yield


@pytest.fixture(autouse=True)
def unregistered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it; the example can be imported."""
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    with what_is_registered_is_forgotten():
        yield
    sys.modules.pop("own_methods", None)


@pytest.fixture
def example() -> Any:
    return import_module("own_methods")


def told(lines: list[str]) -> list[str]:
    """What each line is refused with, or what it is taken as."""
    results = []
    for line in lines:
        try:
            results.append(f"taken as {read_config(line)}")
        except ValueError as error:
            results.append(str(error))
    return results


def test_the_page_shows_all_of_the_example() -> None:
    page, text = PAGE.read_text(), EXAMPLE.read_text()
    shown = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    lines = text.splitlines()
    for node in ast.parse(text).body[1:]:
        decorators = getattr(node, "decorator_list", [])
        start = decorators[0].lineno if decorators else node.lineno
        assert "\n".join(lines[start - 1 : node.end_lineno]) in shown


SIZES = (1000, 77, 1)


@in_turn(
    "line",
    [
        "rotating(4)",
        "rotating(4, momentum=0.5, exempt=exempt(smaller_than=2)) | ternary | huffman",
        "wgt(tau=mean(factor=2))",
        "wgt(tau=0.5) | ternary",
        "ternary | huffman",
        "qgt(tau=mean(factor=1, keep=0)) | huffman",
        "strom(tau=layers(default=0.1, patterns={'a*': mean(factor=1)}))",
    ],
)
def test_methods_of_the_example_come_back_from_messages_and_lose_nothing(line: str, example: None) -> None:
    config: Any = read_config(line)
    for same in (str(config), config.model_dump(), config.model_dump(mode="json"), config):
        assert read_config(same) == config
    assert eval(repr(config), {"chain": chain}) == config
    shard = Shard.whole(dict(zip("abc", SIZES, strict=True)))
    worker, resumed = (Compressor(config, Worker(CPU), shard) for _ in range(2))
    owed = torch.zeros(sum(SIZES), dtype=torch.float64)
    for step in range(9):
        torch.manual_seed(step)
        gradients = [torch.randn(size) for size in SIZES]
        if step == 5:
            like = dict(zip("abc", gradients, strict=True))
            resumed.feedback.load_state_dict(worker.feedback.state_dict(), like)
        payload = worker.compress([gradient.clone() for gradient in gradients], step).payload
        if step >= 5:
            again = resumed.compress([gradient.clone() for gradient in gradients], step).payload
            assert payload.tobytes() == again.tobytes()
        total = torch.zeros(sum(SIZES))
        worker.total([worker.read(payload)], 1, total)
        owed += torch.cat(gradients).double() - total.double()
    if "momentum" not in line:
        kept = torch.cat([worker.feedback.residuals[name] for name in "abc"])
        assert (owed - kept).abs().max() < 1e-5


# In specs.

SPEC = (
    "data: {kind: synthetic, train_examples: 300, test_examples: 60, height: 6, width: 6}\n"
    "model: {kind: mlp, widths: [16]}\n"
    "training: {iterations: 40, batch_size: 30, optimizer: {kind: sgd, lr: 0.1}}\n"
    "workers: {count: 2}\nsync: {mode: simulated}\ncheckpoint: {interval: 1000}\n"
)


def test_a_spec_trains_with_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "platform")
    from recorder import Recorder

    path = tmp_path / "spec.yaml"
    path.write_text("extensions: [own_methods]\ncompressor: rotating(4)\n" + SPEC)
    with pytest.raises(SpecError, match="extensions = own_methods: names code, which would run; if you tr"):
        read_spec(path)
    assert "own_methods" not in sys.modules
    with allowed(True):
        spec: Any = read_spec(path, ["--compressor.decay", "0.9"])
    assert (spec.compressor.decay, spec.compressor.kind) == (0.9, "rotating")
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec
    heard = Recorder(tmp_path)
    Trainer(spec, load(spec.data), torch.device("cpu"), heard).fit()
    results = [metrics for _, metrics in heard.logged if "train/loss" in metrics]
    assert len(results) == 40
    assert results[-1]["train/loss"] < 0.7 * results[0]["train/loss"]
    assert all(step["comm/fraction"] == pytest.approx(0.25, abs=0.02) for step in results)


def test_the_command_line_may_name_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    assert main(["train", str(path), "--compressor", "rotating(4)"]) == 2
    assert "rotating is unknown: choose" in capsys.readouterr().err
    words = ["--extensions", "own_methods", "--compressor", "rotating(4)"]
    spec = read_spec(path, words)
    assert (spec.extensions, str(spec.compressor)) == (("own_methods",), "rotating(stripes=4)")
    assert spec.fingerprint() == spec.model_copy(update={"extensions": ()}).fingerprint()
    assert "extensions" in spec.flat()
    assert "extensions" not in read_spec(path).flat()
    with pytest.raises(SpecError, match="extensions: nowhere cannot be imported: ModuleNotFoundError"):
        read_spec(path, ["--extensions", "nowhere"])
    path.write_text("compressor: \"rotating({'choice': [2, 16]})\"\n" + SPEC)
    assert "own_methods" in read_search(path, ["--extensions", "own_methods"]).arguments


# What is refused.


def rule(base: type = SparseMethod, kind: str | None = "mine", **members: Any) -> type:
    """A class of fields with some members."""
    annotations = {} if kind is None else {"kind": str}
    fields = {} if kind is None else {"kind": kind}
    made: type = type(base)(
        "Mine", (base,), {"__module__": __name__, "__annotations__": annotations} | fields | members
    )
    return made


def policy(**members: Any) -> type:
    return rule(Policy, taus=lambda self, parts, iteration, memories, method: [], **members)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: 3, "3: must be a subclass of CompressedMethod, Quantizer or Policy"),
    (rule, "Mine lacks take"),
    (lambda: rule(Policy), "Mine lacks taus"),
    (lambda: rule(Quantizer, makes="linear"), "Mine lacks apply"),
    (lambda: policy(kind=None), "Mine needs a field such as kind"),
    (lambda: policy(first_field="x"), "Mine.first_field = x is none of its fields"),
    (lambda: rule(ThresholdedMethod), "Mine needs sends, how an element is sent"),
    (lambda: rule(Quantizer, apply=lambda self, given: None), "Mine needs makes, the form of its values"),
    (
        lambda: rule(ThresholdedMethod, kind="wgt"),
        f"rule wgt ({__name__}.Mine): taugrad has one of that name",
    ),
    (
        lambda: rule(ThresholdedMethod, kind="rotating"),
        f"rule rotating ({__name__}.Mine): own_methods.Rotating has that name",
    ),
]


@in_turn("wrong", WRONG)
def test_wrong_classes_are_refused(wrong: tuple[Callable[[], Any], str], example: Any) -> None:
    made, words = wrong
    with pytest.raises((TypeError, ValueError)) as refused:
        register(made())
    assert words in str(refused.value)
