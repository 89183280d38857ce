"""Errors about data that cannot be used. Needs no torch, so that Ray Data's tasks can raise them, too."""


class DataError(ValueError):
    """Data that cannot be trained on; the message says what was found and what would do."""
