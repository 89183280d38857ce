"""Authenticates messages: each is followed by a tag, which needs a key, and which every receiver checks.

All workers have the same key. At their first exchange, each tells the others a random number. The key of this
session is derived from the shared key and all these numbers, so messages of other sessions are refused. A tag
is keyed BLAKE2b (RFC 7693) over the message, its sender, its receiver, its subject, and the number of
messages about this subject before it. A message that was changed, repeated, delayed, or sent in another
worker's name is therefore refused.

Tags do not encrypt: anybody on the network can read the messages.
"""

import hashlib
import hmac
import os
import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..agreement import gathered
from ..errors import CorruptMessage, WorkersDisagree
from ..ops.array import Bytes

KEY, KEY_FILE = "TAUGRAD_KEY", "TAUGRAD_KEY_FILE"
"""Variables of the environment: the key itself, or a file that holds it."""
TAG_BYTES = 16
"""Number of bytes that a tag adds to a message."""
SHORTEST_KEY, LONGEST_KEY = 16, 4096
TO_ALL = 2**32 - 1
"""A receiver: the message is the same for all."""
_NONCE_BYTES, _PROOF_BYTES = 32, 32
_CONTEXT = Struct("<IIQQ")
"""Sender, receiver, what it is about, how many of these came before; little-endian."""


class KeyProblem(ValueError):
    """There is no key, or none that can be used; the message never holds it."""


def key_of_environment(environment: Mapping[str, str] | None = None) -> bytes:
    """The key that all workers of a run share.

    Args:
        environment: by default this process's.

    Returns:
        What TAUGRAD_KEY holds, or the file that TAUGRAD_KEY_FILE names, without white space around it.

    Raises:
        KeyProblem: neither is set, or both are, the file cannot be read, or the key is too short or long.
    """
    variables = os.environ if environment is None else environment
    text, path = variables.get(KEY, ""), variables.get(KEY_FILE, "")
    if text and path:
        raise KeyProblem(f"{KEY} and {KEY_FILE} are both set; leave one out")
    if not text and not path:
        raise KeyProblem(
            f"there is no key; set {KEY_FILE} to a file that holds one, or {KEY}, for all workers"
        )
    if path:
        try:
            with Path(path).open("rb") as file:
                key, where = file.read(LONGEST_KEY + 1).strip(), f"{KEY_FILE} = {path}"
        except OSError as error:
            raise KeyProblem(f"{KEY_FILE} = {path}: {error.strerror}") from None
    else:
        key, where = text.strip().encode(errors="surrogateescape"), KEY
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise KeyProblem(
            f"{where}: a key has {SHORTEST_KEY} to {LONGEST_KEY} bytes, this one {len(key)}; "
            "`openssl rand -hex 32` makes one"
        )
    return key


class Seal:
    """Makes the tags of one worker's messages, and checks those of the others, in one session.

    Messages on a subject are numbered: all workers must make and open the same number, in the same order.
    """

    def __init__(self, key: bytes, rank: int) -> None:
        """Takes the key of a session.

        Args:
            key: of this session, at most 64 bytes.
            rank: this worker's.
        """
        self._key, self._rank = key, rank
        self._turns: defaultdict[int, int] = defaultdict(int)

    @classmethod
    def meet(cls, key: bytes, group: dist.ProcessGroup | None, device: torch.device) -> "Seal":
        """Makes sure that all workers of a group have one key; all must call this at the same point.

        Args:
            key: the key that all workers share, of any length.
            group: the workers; by default all.
            device: the device on which the transport needs its buffers.

        Raises:
            WorkersDisagree: on every worker, if one has another key.
        """
        rank, works = dist.get_rank(group), list[dist.Work]()
        nonces = gathered(secrets.token_bytes(_NONCE_BYTES), group, device, works)
        # A key may be longer than BLAKE2b takes.
        secret = hashlib.blake2b(key, digest_size=64, person=b"taugrad key").digest()
        ours = hashlib.blake2b(
            b"".join(nonces), key=secret, digest_size=64, person=b"taugrad meeting"
        ).digest()
        proofs = gathered(_proof(ours, rank), group, device, works)
        if not all(hmac.compare_digest(proof, _proof(ours, other)) for other, proof in enumerate(proofs)):
            raise WorkersDisagree(
                f"they do not have the same key; give all of them the same {KEY_FILE}, or {KEY}"
            )
        return cls(ours, rank)

    def turn(self, about: int) -> int:
        """Starts the next exchange on a subject; returns its number, from 0, the same on every worker."""
        self._turns[about] += 1
        return self._turns[about] - 1

    def sealed(self, message: Bytes, about: int, turn: int, receiver: int = TO_ALL) -> Bytes:
        """A message, followed by its tag.

        Args:
            message: uint8 [n].
            about: its subject, such as a bucket's number.
            turn: the number of the exchange.
            receiver: the receiver's rank, if the message is for one worker only.

        Returns:
            uint8 [n + TAG_BYTES]
        """
        tag = self._tag(message, self._rank, receiver, about, turn)
        return np.concatenate((message, np.frombuffer(tag, np.uint8)))

    def opened(self, arrived: Bytes, sender: int, about: int, turn: int, receiver: int = TO_ALL) -> Bytes:
        """The message without its tag: uint8 [n - TAG_BYTES], a view; for arguments see `sealed`.

        Raises:
            CorruptMessage: it does not have the right tag.
        """
        end = max(0, arrived.size - TAG_BYTES)
        message, tag = arrived[:end], arrived[end:].tobytes()
        if not hmac.compare_digest(tag, self._tag(message, sender, receiver, about, turn)):
            raise CorruptMessage(
                f"the message of worker {sender} is not authentic: it was changed or repeated on its way, or "
                "another key wrote it"
            )
        return message

    def check_rows(self, rows: Tensor, sizes: Sequence[int], about: int, turn: int) -> list[int]:
        """Checks the messages from all workers to all.

        Args:
            rows: uint8 [workers, longest or more], row r begins with worker r's message.
            sizes: of each, the tag included.
            about: as in `sealed`.
            turn: as in `sealed`.

        Returns:
            The lengths without the tags.

        Raises:
            CorruptMessage: as `opened` says.
        """
        here: Bytes = rows.cpu().numpy()
        for sender, size in enumerate(sizes):
            if sender != self._rank:
                self.opened(here[sender, : max(0, size)], sender, about, turn)
        return [size - TAG_BYTES for size in sizes]

    def _tag(self, message: Bytes, sender: int, receiver: int, about: int, turn: int) -> bytes:
        context = _CONTEXT.pack(sender, receiver, about, turn)
        made = hashlib.blake2b(context, key=self._key, digest_size=TAG_BYTES, person=b"taugrad message")
        made.update(np.ascontiguousarray(message).data)
        return made.digest()


def _proof(key: bytes, rank: int) -> bytes:
    """A proof that a worker has the key of a session."""
    number = rank.to_bytes(8, "little")
    return hashlib.blake2b(number, key=key, digest_size=_PROOF_BYTES, person=b"taugrad proof").digest()
