"""The interface of quantizers: their fields, and the pass from floats to symbols."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from pydantic import Field

from ..method.base import Settings

if TYPE_CHECKING:  # a command line reads the fields, and need not wait for torch
    from collections.abc import Sequence

    from torch import Tensor

    from ..ops.array import Array
    from ..ops.interface import Ops
    from ..ops.readback import Pending, Readback
    from ..ops.results import QuantizedPass, Quantizing
    from ..tau.by_law import Law
    from ..wire.forms import Form

Bits = Annotated[int, Field(ge=1, le=16)]
Block = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Given(NamedTuple):
    """A parameter to be quantized."""

    residual: "Tensor | None"
    """Contiguous float32 [n]; becomes what the symbols leave out. None for zeros that nobody keeps."""
    gradient: "Tensor"
    """Contiguous [n], n at least 1, of any float type."""
    rms: float | None = None
    """Of the loss's gradient, where something else is quantized in its place."""
    number: float | None = None
    """What a law says for the parameter, where the method has a law."""


class Work(NamedTuple):
    """Where a quantizer works, and what it waits for."""

    ops: "Ops"
    """Where residuals and gradients are."""
    readback: "Readback"
    """What a quantizer asks for, and fetches, to go on."""
    returned: "Readback"
    """Receives what passes come to; somebody else fetches it."""

    def room(self, given: "Sequence[Given]", bits: int, block: int) -> "Quantizing":
        """A pass over parameters, with room for their symbols of at most so many bits."""
        from ..ops.cpu.bitpack import symbol_type  # noqa: PLC0415 (reading a configuration needs no numba)
        from ..ops.results import Quantizing  # noqa: PLC0415

        gradients = [each.gradient for each in given]
        symbols = self.ops.empty(sum(each.numel() for each in gradients), symbol_type(bits))
        return Quantizing([each.residual for each in given], gradients, symbols, bits, block)


@dataclass(slots=True)
class Quantized:
    """What passes over some parameters made; each parameter's stands behind that of the one before."""

    bits: "Sequence[int]"
    """Of a symbol, or of a short float, of each parameter."""
    values: "Array"
    """Symbols, uint8 where all have up to 8 bits, otherwise uint16; or the bits of 16-bit floats."""
    passed: "Pending[list[QuantizedPass]]"
    """What the passes came to. Where one was not finite, symbols and tables mean nothing."""
    block: int = 0
    """Values that share tables, the last ones of a parameter may be fewer; 0: one block a parameter."""
    tables: "tuple[Array, ...]" = ()
    """Ranges or tables of all blocks (`wire.forms.table_layout`)."""


class Quantizer(Settings):
    """The fields of a quantizer, which a link and a method have in common."""

    makes: ClassVar["Form"]
    """The form of its values in a message."""
    has_symbols: ClassVar[bool] = True
    """Whether that are symbols, which a Huffman code may shorten."""

    @abstractmethod
    def apply(self, given: "Sequence[Given]", work: Work) -> Quantized:
        """Quantizes residual + gradient of all parameters of a bucket, each for itself.

        Args:
            given: the parameters; there may be none.
            work: where, and what is waited for.
        """

    @property
    def value_bits(self) -> float:
        """About what a value takes, to plan by."""
        return 8.0

    @property
    def law(self) -> "Law | None":
        """The law that decides something for each parameter, if one does."""
        return None

    @classmethod
    def problem(cls, name: str) -> str:
        """See `Settings.problem`."""
        from ..wire.forms import FORMS  # noqa: PLC0415 (NumPy)

        wanted = f"{cls.__name__} needs makes, the form of its values: one of {', '.join(FORMS)}"
        return super().problem(name) or ("" if getattr(cls, "makes", None) in FORMS else wanted)


class QuantizerLink(Quantizer):
    """A quantizer behind a sparse rule: what was selected is quantized; `kind` is among its fields."""

    if TYPE_CHECKING:
        kind: str


class Blocks(Settings):
    """Values that are quantized block by block."""

    block: Block = 2048
    """Number of elements that share a range or table; 0: the whole layer is one block."""


class Bins(Blocks, Quantizer):
    """Values in 2^bits bins a block."""

    first_field = "bits"

    bits: Bits = 8
    """Bits per element."""

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return float(self.bits)
