"""The fuzz harness with a fixed number of messages; fuzzing.py runs it for as many as one likes."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.positions import OURS

MESSAGES = 100_000


def test_damaged_messages_of_every_format_are_refused_or_valid(fuzzing: ModuleType) -> None:
    summary = fuzzing.fuzz(MESSAGES, seed=20)
    assert summary.tried.total() == MESSAGES
    sparse = [(form, codec) for form in FORMS for codec in fuzzing.POSITIONS]
    sparse += [(form, "raw") for form in FORMS if FORMS[form].dense_dtype]
    whole = [(form, codec) for form in FORMS if not FORMS[form].has_tau for codec in ("every", "chunked")]
    assert {codec for _, codec in sparse + whole} == {"every", *(codec.name for codec in OURS)}
    expected = {f"{form} {codec}" for form, codec in sparse + whole}
    expected |= {
        f"{form} {codec} huffman" for form, codec in sparse + whole if FORMS[form].symbols and codec != "raw"
    }
    assert expected <= set(summary.tried)
    # Damage that leaves a valid message is what tests that accepted updates are valid.
    assert all(summary.accepted[name] for name in expected)
    assert summary.accepted["payloads"]


def test_the_same_seed_reads_the_same_messages(fuzzing: ModuleType) -> None:
    first, second = fuzzing.fuzz(500, seed=3), fuzzing.fuzz(500, seed=3)
    assert (first.tried, first.accepted) == (second.tried, second.accepted)


class Raising:
    """A reader that raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: object) -> object:
        raise self.error


@in_turn("error", [IndexError("beyond"), AssertionError("no"), UserWarning("overflow")])
def test_any_other_error_than_a_refusal_is_reported_with_the_bytes(
    fuzzing: ModuleType, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ready = fuzzing.originals(1)  # which reads, too
    monkeypatch.setattr(fuzzing, "originals", lambda seed: ready)
    for each in ("read", "read_nonfinite"):
        monkeypatch.setattr(fuzzing.message, each, Raising(error))
    with pytest.raises(type(error)) as raised:
        fuzzing.fuzz(100, seed=1)
    assert raised.value is error
    assert "of seed 1: 7467" in raised.value.__notes__[0]


def test_a_refusal_of_everything_is_counted(fuzzing: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = fuzzing.originals(1)  # which reads, too
    monkeypatch.setattr(fuzzing, "originals", lambda seed: ready)
    for each in ("read", "read_nonfinite"):
        monkeypatch.setattr(fuzzing.message, each, Raising(CorruptMessage("no")))
    summary = fuzzing.fuzz(300, seed=1)
    assert summary.accepted == Counter()
    assert summary.tried.total() == 300


def test_it_runs_as_a_program() -> None:
    program = Path(__file__).with_name("fuzzing.py")
    run = subprocess.run(
        [sys.executable, str(program), "--messages", "300", "--seed", "9"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert run.stdout.splitlines()[-2].split()[:2] == ["all", "300"]
