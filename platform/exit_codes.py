"""How every command's process ends, as a number."""

OK, FAILED, WRONG_INPUT = 0, 1, 2
INTERRUPTED, UNREAD, TERMINATED = 130, 141, 143
"""As shells have them: 128 and the number of the signal, of Ctrl-C, an output that nobody reads, `kill`."""
