"""What is said of data that cannot be used. Needs no torch, so that Ray Data's tasks can say it, too."""


class DataError(ValueError):
    """Data that cannot be trained on; the message says what was found and what would do."""
