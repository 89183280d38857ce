"""The fuzz harness with a fixed number of messages; fuzzing.py runs it for as many as one likes.

docs/reference/messages.md is exact: a decoder written from it agrees with ours on what is damaged, too.
"""

import fuzzing
import numpy as np
import pytest
from updates import check_by_the_page

from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.message import NonFinite
from taugrad.compressors.wire.positions import OURS
from taugrad.compressors.wire.update import Update

MESSAGES = 30_000
LONG, LARGEST_N = 400, 20_000
"""Bytes and elements of damaged messages that are left out: the page's decoder takes its time."""


def test_what_methods_write_is_read_by_the_page() -> None:
    messages = [each for payload in fuzzing.originals(8) for each in payload.messages]
    messages.sort(key=lambda each: sum(each[1]))
    short = [each for each in messages if sum(each[1]) < 300]
    for data, sizes in short + messages[len(short) :: 4]:
        check_by_the_page(data, sizes, fuzzing.read(np.frombuffer(data, np.uint8), sizes))


def test_damaged_messages_of_every_format_are_refused_or_valid() -> None:
    def compare(data: bytes, sizes: tuple[int, ...], ours: Update | NonFinite | None) -> None:
        if len(data) < LONG and sum(sizes) < LARGEST_N:
            check_by_the_page(data, sizes, ours)

    summary = fuzzing.fuzz(MESSAGES, seed=20, compare=compare)
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


def test_it_runs_as_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["fuzzing.py", "--messages", "300", "--seed", "9"])
    assert fuzzing.main() == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[:2] == ["all", "300"]
