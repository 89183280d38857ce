"""Writing messages, and reading them, on one kind of device.

Legend: n elements, k of them sent, whose words are position << 1 | sign, uint32 [k], positions ascending.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from .array import Array, Bytes
from .faults import Faults
from .results import Found, HalfFormat, ThresholdRule
from .returns import Returns, Steps


class Sections(Protocol):
    """Golomb-Rice coded positions that are ready to be written."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each section, exactly."""

    def write(self, which: Sequence[int], out: Any, begins: Sequence[int]) -> None:
        """Writes some of the sections; a few bytes behind one may be overwritten.

        Args:
            which: their numbers.
            out: uint8, zeros.
            begins: where each section begins in it, ascending.
        """


class RiceBody(NamedTuple):
    """A body that begins with Golomb-Rice coded positions."""

    body: Any
    """uint8, of one message."""
    n: int
    k: int
    faults: Faults
    """Of the message."""


class HuffmanCoded(Protocol):
    """Symbols that are ready to be written as Huffman codes."""

    @property
    def size(self) -> int:
        """Bytes of the section, exactly."""


class Payload(ABC):
    """Messages under way to one array."""

    array: Array
    """uint8, zeros at first."""

    @abstractmethod
    def put(self, data: Bytes | bytes, at: int) -> None:
        """Writes the host's bytes from byte `at` on."""

    @abstractmethod
    def write_huffman(self, coded: HuffmanCoded, at: int) -> None:
        """Writes what `Ops.plan_huffman` planned from byte `at` on."""

    @abstractmethod
    def seal(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Ends the writing: puts the CRC-32 of each message into its header, at byte 28."""


class Wire(ABC):
    """See the module's text, and `interface.Ops`."""

    # Writing messages

    @abstractmethod
    def payload(self, size: int) -> Payload:
        """Room for messages of so many bytes together."""

    @abstractmethod
    def copy_bytes(self, source: Any, out: Any) -> None:
        """Copies an array's bytes to uint8, at any address."""

    @abstractmethod
    def measure_golomb_rice(self, words: Sequence[Any], signed: bool, returns: Returns) -> Steps[Sections]:
        """Finds the block length that makes each section of words the shortest.

        Raises:
            ValueError: positions do not ascend.
        """

    @abstractmethod
    def plan_huffman(
        self, symbols: Any, bits: int, below: int | None, returns: Returns
    ) -> Steps[HuffmanCoded | None]:
        """Builds a code for symbols; None if it cannot be shorter than `below` bytes, where that is given."""

    @abstractmethod
    def pack(self, symbols: Any, bits: int, out: Any) -> None:
        """Writes symbols of 1 to 16 bits side by side to uint8 [packed_bytes(k, bits)]."""

    @abstractmethod
    def write_bitmap(self, words: Any, n: int, signed: bool, out: Any) -> None:
        """Writes a bit an element, then, if `signed`, a sign a word; both begin at a whole byte."""

    @abstractmethod
    def write_indices(self, words: Any, n: int, chunk: int, keep: int, out: Any) -> None:
        """Packs positions as indices within their chunks."""

    @abstractmethod
    def write_raw(self, form: ThresholdRule, words: Any, values: Any, out: Any) -> None:
        """Writes the elements sent to uint8 of n elements, zeros."""

    # Reading them: what is wrong raises CorruptMessage, or is found by the faults' `check`

    @abstractmethod
    def faults(self, returns: Returns) -> Faults:
        """For one message."""

    @abstractmethod
    def find_messages(
        self, payloads: Any, stride: int, sizes: Sequence[int], most: int
    ) -> list[list[Found] | str]:
        """Cuts payloads into messages by the lengths in their headers. Waits once.

        Args:
            payloads: uint8, one payload every `stride` bytes.
            stride: at least as long as each payload.
            sizes: bytes of the payloads.
            most: how many messages each may have.

        Returns:
            For each payload its messages, or what is wrong with their lengths.
        """

    @abstractmethod
    def aligned(self, body: Any, dtype: Any) -> Any:
        """Bytes, at any address, as an array of another type."""

    @abstractmethod
    def read_golomb_rice(
        self, bodies: Sequence[RiceBody], signed: bool, behind: int, looks: Returns
    ) -> Steps[list[tuple[Any, int, Bytes]]]:
        """Reads the sections that bodies begin with.

        Args:
            bodies: each of a message.
            signed: whether signs were written.
            behind: how many bytes behind each section are wanted on the host.
            looks: what the steps wait for.

        Returns:
            For each its words, uint32 [k] ascending, how many bytes the section takes, and those behind it.
        """

    @abstractmethod
    def read_packed32(self, body: Any, n: int, k: int, faults: Faults) -> Any:
        """Words from 4k bytes, uint32 [k]."""

    @abstractmethod
    def read_bitmap(self, body: Any, n: int, k: int, signed: bool, faults: Faults) -> Any:
        """Words from what `write_bitmap` wrote, uint32 [k]."""

    @abstractmethod
    def read_indices(self, body: Any, n: int, chunk: int, keep: int, faults: Faults) -> Any:
        """Words from what `write_indices` wrote, uint32 [k]."""

    @abstractmethod
    def read_raw(self, form: ThresholdRule, body: Any, n: int, k: int, faults: Faults) -> tuple[Any, Any]:
        """Words and values from what `write_raw` wrote; whether wgt's reach tau is not looked at."""

    @abstractmethod
    def unpack(self, body: Any, bits: int, k: int, faults: Faults) -> Any:
        """Symbols from `packed_bytes(k, bits)` bytes, uint8 [k] up to 8 bits, uint16 [k] above."""

    @abstractmethod
    def read_huffman(self, body: Any, bits: int, k: int, faults: Faults, looks: Returns) -> Steps[Any]:
        """Symbols from a section and nothing else."""

    @abstractmethod
    def join_signs(self, words: Any, values: Any) -> None:
        """Gives words without signs those of their float32 values."""

    @abstractmethod
    def check_no_signs(self, words: Any, faults: Faults) -> None:
        """Whether no word has a sign."""

    @abstractmethod
    def check_wgt(self, words: Any, values: Any, tau: float, faults: Faults) -> None:
        """Whether float32 values are finite, reach tau and agree in sign with their words."""

    @abstractmethod
    def check_levels(self, levels: Any, faults: Faults) -> None:
        """Whether no level, uint8 [k], is 0."""

    @abstractmethod
    def check_floats(self, values: Any, faults: Faults) -> None:
        """Whether float32 values are finite."""

    @abstractmethod
    def check_halves(self, kind: HalfFormat, symbols: Any, faults: Faults) -> None:
        """Whether what 16-bit symbols stand for is finite."""

    @abstractmethod
    def check_linear_tables(self, bits: int, lows: Any, steps: Any, faults: Faults) -> None:
        """Whether tables are such as `linear_pass` writes, and all values finite."""

    @abstractmethod
    def check_quantile_tables(self, tables: Any, exponents: Any, faults: Faults) -> None:
        """Whether tables are such as `quantile_pass` writes."""

    @abstractmethod
    def check_fp8(self, symbols: Any, exponents: Any, faults: Faults) -> None:
        """Whether no symbol is a NaN, and exponents are such as `fp8_pass` writes."""
