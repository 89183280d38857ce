"""How every command's process ends: the number, and what `kill` raises in it."""

OK, FAILED, WRONG_INPUT = 0, 1, 2
INTERRUPTED, UNREAD, TERMINATED = 130, 141, 143
"""As shells have them: 128 and the number of the signal, of Ctrl-C, an output that nobody reads, `kill`."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does; but nobody sits there to be asked anything."""
