"""The shared key of a run's workers, and the key pairs derived from it.

Connections are encrypted and authenticated by CURVE (ZeroMQ's: Curve25519, with session keys, so that nothing
recorded can be replayed). A worker's key pair is derived from the shared key and its rank: every worker can
compute all public keys, and no key is exchanged.
"""

import hashlib
import os
from pathlib import Path

import zmq
from zmq.utils import z85

KEY, KEY_FILE = "TAUGRAD_KEY", "TAUGRAD_KEY_FILE"
"""Variables of the environment: the key itself, or a file that holds it."""
SHORTEST_KEY, LONGEST_KEY = 16, 4096


class KeyProblem(ValueError):
    """There is no key, or none that can be used; the message never holds it."""


def key_of_environment() -> bytes:
    """The key that all workers of a run share.

    Returns:
        What TAUGRAD_KEY holds, or the file that TAUGRAD_KEY_FILE names, without white space around it.

    Raises:
        KeyProblem: neither is set, or both are, the file cannot be read, or the key is too short or long.
    """
    text, path = os.environ.get(KEY, ""), os.environ.get(KEY_FILE, "")
    if text and path:
        raise KeyProblem(f"{KEY} and {KEY_FILE} are both set; leave one out")
    if not text and not path:
        raise KeyProblem(
            f"there is no key; set {KEY_FILE} to a file that holds one, or {KEY}, for all workers"
        )
    if path:
        return key_of_file(Path(path), f"{KEY_FILE} =")
    return _usable(text.strip().encode(errors="surrogateescape"), KEY)


def key_of_file(path: Path, option: str) -> bytes:
    """The key in a file, without white space around it; raises KeyProblem, which names the option."""
    try:
        with path.open("rb") as file:
            key = file.read(LONGEST_KEY + 1).strip()
    except OSError as error:
        raise KeyProblem(f"{option} {path}: {error.strerror}") from None
    return _usable(key, f"{option} {path}")


def _usable(key: bytes, where: str) -> bytes:
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise KeyProblem(
            f"{where}: a key has {SHORTEST_KEY} to {LONGEST_KEY} bytes, this one {len(key)}; "
            "`openssl rand -hex 32` makes one"
        )
    return key


def require_long_enough(key: bytes | None) -> None:
    """Raises ValueError where a key is too short."""
    if key is not None and len(key) < SHORTEST_KEY:
        raise ValueError(f"a key of {len(key)} bytes: it must have {SHORTEST_KEY} at least")


def key_pair(key: bytes, rank: int) -> tuple[bytes, bytes]:
    """Derives a worker's public and secret key, in Z85 as ZeroMQ takes them, from the shared key."""
    hashed = hashlib.blake2b(key, digest_size=64, person=b"taugrad key").digest()  # BLAKE2's keys are short
    seed = hashlib.blake2b(rank.to_bytes(8, "little"), key=hashed, digest_size=32, person=b"taugrad curve")
    secret: bytes = z85.encode(seed.digest())
    return zmq.curve_public(secret), secret
