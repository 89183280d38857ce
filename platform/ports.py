"""Ports for servers of our own on this machine."""

import random
import socket

LOOPBACK = "127.0.0.1"

# Between the ports of Ray's workers (to 19,999) and those that Linux (from 32,768) and others (from 49,152)
# give to any that ask. A server takes seconds until it listens: by then a port from there may belong
# to another process.
_FIRST, _LAST = 20_000, 32_767
_ATTEMPTS = 100


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, from 20,000 to 32,767; raises OSError: none of 100 is."""
    # Not `random` itself, which a training's seed may have set: two runs would choose the same port.
    for port in random.SystemRandom().sample(range(_FIRST, _LAST + 1), _ATTEMPTS):
        with socket.socket() as listener:
            # As servers do: what waits after a closed connection is not in the way.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise OSError(f"no port of {LOOPBACK} from {_FIRST} to {_LAST} is free (tried: {_ATTEMPTS})")
