"""Removes passwords from addresses, for screens, logs and pages."""

import re

_PASSWORD = re.compile(r"(?P<user>://[^\s:/@]*):[^\s\"']*@")
_OPTION = re.compile(
    r"(?P<name>[?&;](?:\w*password|passwd|pwd|\w*token|\w*secret)=)[^\s&;\"']*", re.IGNORECASE
)
_LOGIN = re.compile(r"(?P<scheme>://)[^\s/@]*@")


def masked(text: str) -> str:
    """A text, such as an address or an error that contains one, with `***` instead of passwords.

    `postgresql://me:secret@host/runs` becomes `postgresql://me:***@host/runs`.
    """
    return _OPTION.sub(r"\g<name>***", _PASSWORD.sub(r"\g<user>:***@", text))


def first_line(error: BaseException) -> str:
    """What an error says, in one line without passwords; its type where it says nothing."""
    return masked(str(error).strip().partition("\n")[0]) or type(error).__name__


def without_login(address: str) -> str:
    """A server's address without user and password, so that it can be shown as a link."""
    return _LOGIN.sub(r"\g<scheme>", address)
