"""The fuzz harness with a fixed number of messages; fuzzing.py runs it for as many as one likes."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.positions import OURS

MESSAGES = 30_000


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
