"""How large images are inside a network, and whether they are large enough for it."""


def check_size(network: str, height: int, width: int, smallest: int, *, instead: str) -> None:
    """Refuses images of which a network would leave nothing.

    Args:
        network: its name, for the message.
        height: rows of an image.
        width: columns of an image.
        smallest: rows and columns that it needs.
        instead: a kind of model that takes smaller ones.

    Raises:
        ValueError: the images are smaller than that.
    """
    if min(height, width) < smallest:
        raise ValueError(
            f"images of {height} x {width} are too small for {network}, which needs at least "
            f"{smallest} x {smallest}; `{instead}` takes smaller ones"
        )


def windows(size: int, kernel: int, stride: int, padding: int = 0) -> int:
    """How many windows of a convolution or pooling fit into so many rows, those that stick out left out."""
    return (size + 2 * padding - kernel) // stride + 1


def scaled(width: int, multiplier: float, multiple: int = 1) -> int:
    """A layer's width times a factor, rounded to a multiple of a number, which it is at least."""
    return max(1, round(width * multiplier / multiple)) * multiple
