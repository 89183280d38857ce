"""What can go wrong only where workers do not wait; needs no torch."""


class Diverged(ValueError):
    """A weight left the range that sums in fixed point have, or is no number."""
