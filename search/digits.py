"""Rounds numbers to the digits that matter."""

import math


def rounded(value: float, digits: int) -> float:
    """A number with this many significant digits."""
    return float(f"{value:.{digits}g}")


def rounded_down(value: float) -> float:
    """A number above 0 with three significant digits, rounded down."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return rounded(math.floor(value / unit * (1 + 1e-12)) * unit, 3)
