"""How readers of columns say that messages are to be read one by one."""


class Odd(Exception):
    """Something is not as it mostly is: `message` reads it, and says what is wrong, if anything is."""


def must(condition: bool) -> None:
    """Raises Odd unless a condition holds."""
    if not condition:
        raise Odd
