"""Debian's espeak-ng, through its library: samples, and where each phoneme begins."""

import ctypes
import ctypes.util
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PACKAGES = "espeak-ng libespeak-ng1"
"""Debian's packages that bring the library and its voices."""

# From speak_lib.h of espeak-ng 1.51 (API revision 12).
_SYNCHRONOUS = 2
_PHONEME_EVENTS, _RETURN_ON_ERROR = 0x0001, 0x8000
_RATE, _PITCH, _RANGE = 1, 3, 4
_UTF8 = 1
_END_OF_LIST, _PHONEME = 0, 7


class SpeechError(RuntimeError):
    """Speech that cannot be made; the message says why, and what would help."""


class Speech(NamedTuple):
    """What was spoken."""

    samples: NDArray[np.int16]
    """[n]"""
    phonemes: list[str]
    """espeak's names, in order."""
    starts: NDArray[np.int64]
    """The sample at which each of them begins, ascending, below n."""


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("phoneme", ctypes.c_char * 8),  # of a union of 8 bytes
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


def loaded() -> ctypes.CDLL:
    """The library; raises SpeechError where it is not installed, OSError where it cannot be loaded."""
    path = ctypes.util.find_library("espeak-ng")
    if path is None:
        raise SpeechError(f"libespeak-ng is missing; on Debian: apt-get install {PACKAGES}")
    library = ctypes.CDLL(path)
    library.espeak_Info.restype = ctypes.c_char_p
    return library


def version_of(library: ctypes.CDLL) -> str:
    """The version of the loaded library."""
    version: bytes = library.espeak_Info(None)
    return version.decode()


class Speaker:
    """The library, of which a process has one.

    It keeps state from text to text: the same texts give the same samples only in the same order, from the
    start of a process. `rate` is in samples a second.
    """

    def __init__(self) -> None:
        """Loads the library; raises SpeechError where it is not installed, or finds no voices."""
        self._library = loaded()
        options = _PHONEME_EVENTS | _RETURN_ON_ERROR
        self.rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, None, options)
        if self.rate <= 0:
            raise SpeechError(f"espeak-ng finds no voices; on Debian: apt-get install --reinstall {PACKAGES}")
        self._callback = _Callback(self._take)  # must live as long as the library
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: str, *, words_a_minute: int, pitch: int, pitch_range: int) -> Speech:
        """Speaks a text; raises SpeechError: there is no such voice, or the library failed.

        `voice` is a voice's name with a variant, such as `en-us+f3`. 80 to 450 words a minute, pitch 0 to 100
        (50: as the voice has it), and a range of it from 0 (monotone) to 100.
        """
        self._samples, self._phonemes = list[bytes](), list[tuple[str, int]]()
        self._must("voice", voice, self._library.espeak_SetVoiceByName(voice.encode()))
        for parameter, value in ((_RATE, words_a_minute), (_PITCH, pitch), (_RANGE, pitch_range)):
            self._must("parameter", value, self._library.espeak_SetParameter(parameter, value, 0))
        spoken = text.encode()
        size = ctypes.c_size_t(len(spoken) + 1)
        self._must("text", text, self._library.espeak_Synth(spoken, size, 0, 1, 0, _UTF8, None, None))
        self._must("text", text, self._library.espeak_Synchronize())
        samples = np.frombuffer(b"".join(self._samples), dtype=np.int16)
        # The last pause may begin where the samples end.
        inside = [(name, start) for name, start in self._phonemes if start < len(samples)]
        starts = np.array([start for _, start in inside], dtype=np.int64)
        return Speech(samples, [name for name, _ in inside], starts)

    def _take(self, samples: Any, count: int, events: Any) -> int:
        """Keeps what the library hands over; 0 lets it go on."""
        if count:
            self._samples.append(ctypes.string_at(samples, count * ctypes.sizeof(ctypes.c_short)))
        number = 0
        while (event := events[number]).type != _END_OF_LIST:
            if event.type == _PHONEME:
                self._phonemes.append((event.phoneme.decode(), event.sample))
            number += 1
        return 0

    def _must(self, what: str, value: object, code: int) -> None:
        if code:
            raise SpeechError(f"espeak-ng refuses {what} {value!r} (error {code}); it needs {PACKAGES}")
