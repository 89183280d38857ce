"""Tags behind messages: what is made with the key passes, and everything else is refused."""

import hashlib

import numpy as np
import pytest
import torch
import torch.distributed as dist

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.wire.sealing import (
    KEY,
    KEY_FILE,
    SHORTEST_KEY,
    TAG_BYTES,
    TO_ALL,
    KeyProblem,
    Seal,
    key_of_environment,
)

MEETING = bytes(range(64))
MESSAGE = np.frombuffer(b"what worker 1 sends", np.uint8)


@pytest.fixture
def sender() -> Seal:
    return Seal(MEETING, 1)


@pytest.fixture
def receiver() -> Seal:
    return Seal(MEETING, 0)


def test_a_message_arrives_and_is_longer_by_its_tag(sender, receiver):
    sealed = sender.sealed(MESSAGE, 3, 0)
    assert sealed.size == MESSAGE.size + TAG_BYTES
    np.testing.assert_array_equal(receiver.opened(sealed, 1, 3, 0), MESSAGE)


def test_the_tag_is_what_the_format_says(sender):
    """Written down once more: the format must not change between versions that train together."""
    context = bytes([1, 0, 0, 0, 255, 255, 255, 255, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])
    made = hashlib.blake2b(
        context + MESSAGE.tobytes(), key=MEETING, digest_size=16, person=b"taugrad message"
    )
    assert sender.sealed(MESSAGE, 3, 2)[-TAG_BYTES:].tobytes() == made.digest()


def test_every_changed_bit_is_refused(sender, receiver):
    sealed = sender.sealed(MESSAGE, 3, 0)
    for bit in range(8 * sealed.size):
        changed = sealed.copy()
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMessage, match="the message of worker 1 is not authentic"):
            receiver.opened(changed, 1, 3, 0)


@pytest.mark.parametrize("length", [0, 1, TAG_BYTES - 1, TAG_BYTES, TAG_BYTES + 1])
def test_what_is_cut_is_refused(sender, receiver, length):
    with pytest.raises(CorruptMessage, match="not authentic"):
        receiver.opened(sender.sealed(MESSAGE, 3, 0)[:length], 1, 3, 0)


@pytest.mark.parametrize(
    ("by", "about", "turn", "to"),
    [(2, 3, 0, TO_ALL), (1, 4, 0, TO_ALL), (1, 3, 1, TO_ALL), (1, 3, 0, 0)],
    ids=["another's", "about another bucket", "an earlier one", "for all in place of one"],
)
def test_what_stands_in_for_another_message_is_refused(sender, receiver, by, about, turn, to):
    sealed = sender.sealed(MESSAGE, 3, 0)
    receiver.opened(sealed, 1, 3, 0)
    with pytest.raises(CorruptMessage, match="not authentic"):
        receiver.opened(sealed, by, about, turn, to)


def test_another_meeting_s_messages_are_refused(sender):
    with pytest.raises(CorruptMessage, match="another key wrote it"):
        Seal(MEETING[::-1], 0).opened(sender.sealed(MESSAGE, 3, 0), 1, 3, 0)


def test_an_empty_message_has_a_tag_too(sender, receiver):
    nothing = np.empty(0, np.uint8)
    sealed = sender.sealed(nothing, 0, 0, 0)
    assert receiver.opened(sealed, 1, 0, 0, 0).size == 0
    with pytest.raises(CorruptMessage):
        receiver.opened(nothing, 1, 0, 0, 0)


def test_turns_are_counted_by_what_they_are_about(sender):
    assert [sender.turn(about) for about in (0, 0, 7, 0, 7)] == [0, 1, 0, 2, 1]


def test_rows_are_checked_but_for_the_worker_s_own():
    seals = [Seal(MEETING, rank) for rank in range(3)]
    messages = [seal.sealed(MESSAGE[: 5 + rank], 9, 4) for rank, seal in enumerate(seals)]
    rows = torch.zeros((3, 40), dtype=torch.uint8)
    for row, message in zip(rows, messages, strict=True):
        row[: message.size] = torch.from_numpy(message)
    sizes = [each.size for each in messages]
    assert seals[0].check_rows(rows, sizes, 9, 4) == [5, 6, 7]
    rows[0, 0] ^= 1  # nobody else made it
    assert seals[0].check_rows(rows, sizes, 9, 4) == [5, 6, 7]
    with pytest.raises(CorruptMessage, match="worker 0"):
        seals[1].check_rows(rows, sizes, 9, 4)
    with pytest.raises(CorruptMessage, match="worker 2"):
        seals[0].check_rows(rows, [sizes[0], sizes[1], -3], 9, 4)


def test_workers_with_one_key_meet(tmp_path):
    """One worker alone has the same key as all; two with different ones: tests/platform/test_sealing.py."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        seals = [Seal.meet(GOOD.encode(), None, torch.device("cpu")) for _ in range(2)]
    finally:
        dist.destroy_process_group()
    sealed = seals[0].sealed(MESSAGE, 3, 0)
    assert seals[0].opened(sealed, 0, 3, 0).tobytes() == MESSAGE.tobytes()
    with pytest.raises(CorruptMessage):  # of another meeting, with another nonce
        seals[1].opened(sealed, 0, 3, 0)


GOOD = "0123456789abcdef"


def test_a_key_comes_from_a_variable_or_a_file(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{GOOD}\n")
    assert len(GOOD) == SHORTEST_KEY
    assert key_of_environment({KEY: f" {GOOD}\n"}) == key_of_environment({KEY_FILE: str(path)})


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "there is no key; set TAUGRAD_KEY_FILE to a file that holds one, or TAUGRAD_KEY, for all"),
        ({KEY: GOOD, KEY_FILE: "x"}, "TAUGRAD_KEY and TAUGRAD_KEY_FILE are both set"),
        ({KEY: "secret word"}, "TAUGRAD_KEY: a key has 16 to 4096 bytes, this one 11; `openssl rand"),
        ({KEY: "s" * 5000}, "this one 5000"),
        ({KEY_FILE: "/nowhere/key"}, "TAUGRAD_KEY_FILE = /nowhere/key: No such file"),
        ({KEY_FILE: "/dev/null"}, "this one 0"),
    ],
)
def test_what_is_no_key_is_said_without_it(variables, said):
    with pytest.raises(KeyProblem) as problem:
        key_of_environment(variables)
    assert said in str(problem.value)
    assert "secret" not in str(problem.value)
    assert GOOD not in str(problem.value)
