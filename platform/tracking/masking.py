"""Addresses without the passwords in them, for screens, logs and pages."""

import re

_PASSWORD = re.compile(r"(?P<user>://[^\s:/@]*):[^\s\"']*@")
_OPTION = re.compile(
    r"(?P<name>[?&;](?:\w*password|passwd|pwd|\w*token|\w*secret)=)[^\s&;\"']*", re.IGNORECASE
)
_LOGIN = re.compile(r"(?P<scheme>://)[^\s/@]*@")


def masked(text: str) -> str:
    """A text with `***` in the place of passwords: an address, or an error that repeats one.

    Args:
        text: such as `postgresql://me:secret@host/runs` or `...?password=secret`.

    Returns:
        Such as `postgresql://me:***@host/runs`.
    """
    return _OPTION.sub(r"\g<name>***", _PASSWORD.sub(r"\g<user>:***@", text))


def without_login(address: str) -> str:
    """A server's address as a link that may be passed on: without user and password."""
    return _LOGIN.sub(r"\g<scheme>", address)
