"""Addresses of what lies under a storage: a folder's path, or a bucket's address with its options."""

import re

_SCHEME = re.compile(r":/+")


def is_bucket(place: str) -> bool:
    """Whether it is the address of a bucket, and no path."""
    return "://" in place


def repaired(text: str) -> str:
    """An address that was a Path, which makes `s3:/bucket` of `s3://bucket`."""
    return _SCHEME.sub("://", text)


def below(place: str, *names: str) -> str:
    """The address of something under a storage, folder or bucket.

    Args:
        place: such as `/shared/runs`, or `s3://bucket/runs?region=eu-north-1`, whose options stay at the end.
        names: of folders, then a file.
    """
    base, options = _cut(place)
    return "/".join([base.rstrip("/"), *names]) + options


def above(place: str) -> tuple[str, str]:
    """What an address is below of, and its own name: the reverse of `below`."""
    base, options = _cut(place)
    base, _, name = base.rstrip("/").rpartition("/")
    return base + options, name


def _cut(place: str) -> tuple[str, str]:
    base, mark, options = place.partition("?") if is_bucket(place) else (place, "", "")
    return base, mark + options
