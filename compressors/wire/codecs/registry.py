"""Every codec, by name and by code: the built-in ones, and those that a method asked for.

A message never causes an import: its codec is looked up among those that are already known.
"""

from ...config.registry import CODECS
from ...errors import CorruptMessage
from .base import Codec
from .every import Every

OURS: tuple[Codec, ...] = tuple(
    sorted([*(each() for each in CODECS.ours().values()), Every()], key=lambda each: each.turn)
)
"""The codecs that `auto` chooses from; of several with equally short output, it takes the first."""
_BY_NAME = {codec.name: codec for codec in OURS}
_BY_CODE = {codec.code: codec for codec in OURS}


def codec_by_name(name: str) -> Codec:
    """The codec of that name, imported where it is another package's.

    Raises:
        KeyError: there is none.
        ValueError: it is another package's, and cannot be used.
    """
    if name not in _BY_NAME:
        codec: Codec = CODECS[name]()
        before = _BY_CODE.get(codec.code)
        if before is not None:
            raise ValueError(
                f"codec {name} has the code {codec.code}, which {before.name} has: choose another"
            )
        _BY_NAME[name] = _BY_CODE[codec.code] = codec
    return _BY_NAME[name]


def codec_by_code(code: int) -> Codec:
    """The codec whose code a message carries.

    Raises:
        CorruptMessage: no codec has it.
    """
    try:
        return _BY_CODE[code]
    except KeyError:
        raise CorruptMessage(f"codec {code} is unknown; known are {sorted(_BY_CODE)}") from None
