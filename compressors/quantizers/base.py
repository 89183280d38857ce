"""The interface of quantizers: their fields, and the pass from floats to symbols."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, Self

from pydantic import Field

from ..config.base import Settings

if TYPE_CHECKING:  # a command line reads the fields, and need not wait for torch
    from collections.abc import Sequence

    from torch import Tensor

    from ..ops.array import Array
    from ..ops.interface import Ops
    from ..ops.results import QuantizedPass
    from ..ops.returns import Pending, Returns, Steps
    from ..tau.by_law import Law
    from ..wire.forms import Form
    from ..wire.quantized import Quantized

Bits = Annotated[int, Field(ge=1, le=16)]
Block = Annotated[int, Field(ge=0, le=2**31 - 1)]


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Outcome:
    """A quantizing pass."""

    values: "Array | Quantized"
    """uint16 bits of 16-bit floats, or symbols and tables; without meaning if the pass was not finite."""
    passed: "Pending[QuantizedPass]"
    """What it came to."""


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Outcomes:
    """Quantizing passes over some parameters."""

    values: "Sequence[Array | Quantized]"
    """Of each; see `Outcome.values`."""
    passed: "Pending[list[QuantizedPass]]"
    """What they came to."""


class Work(NamedTuple):
    """Where a quantizer works, and what its steps wait for."""

    ops: "Ops"
    """Where residuals and gradients are."""
    looks: "Returns"
    """What the steps wait for."""
    returned: "Returns"
    """Receives what the pass comes to."""
    rms: float | None = None
    """Of the loss's gradient, where something else is quantized in its place."""


class Given(NamedTuple):
    """A parameter to be quantized."""

    residual: "Tensor | None"
    """Contiguous float32 [n]; becomes what the symbols leave out. None for zeros that nobody keeps."""
    gradient: "Tensor"
    """Contiguous [n], n at least 1, of any float type."""
    rms: float | None = None
    """Of the loss's gradient, where something else is quantized in its place."""


class Quantizer(Settings):
    """The fields of a quantizer, which a link and a method have in common."""

    makes: ClassVar["Form"]
    """The form of its values in a message."""
    has_symbols: ClassVar[bool] = True
    """Whether that are symbols, which a Huffman code may shorten."""

    @abstractmethod
    def apply(self, residual: "Tensor | None", gradient: "Tensor", work: Work) -> "Steps[Outcome]":
        """Quantizes residual + gradient.

        Args:
            residual: contiguous float32 [n]; becomes what the symbols leave out. None for zeros that nobody
                keeps.
            gradient: contiguous [n], n at least 1, of any float type.
            work: where, and what is waited for.
        """

    def apply_all(self, given: "Sequence[Given]", work: Work) -> "Steps[Outcomes]":
        """`apply` to all parameters of a bucket; by default one by one.

        Args:
            given: the parameters.
            work: where, and what is waited for.
        """
        from ..ops.returns import together  # noqa: PLC0415 (NumPy)

        return joined(
            together(self.apply(each.residual, each.gradient, work._replace(rms=each.rms)) for each in given)
        )

    @property
    def value_bits(self) -> float:
        """About what a value takes, to plan by."""
        return 8.0

    @property
    def law(self) -> "Law | None":
        """The law that decides something for each parameter, if one does."""
        return None

    def decided(self, number: float) -> Self:
        """The same with what the law said for a parameter."""
        return self

    @classmethod
    def problem(cls, name: str) -> str:
        """See `Settings.problem`."""
        from ..wire.forms import FORMS  # noqa: PLC0415 (NumPy)

        wanted = f"{cls.__name__} needs makes, the form of its values: one of {', '.join(FORMS)}"
        return super().problem(name) or ("" if getattr(cls, "makes", None) in FORMS else wanted)


class InOneCall(Quantizer):
    """A quantizer whose pass takes all parameters in one call, and waits for nothing."""

    @abstractmethod
    def quantize_all(self, given: "Sequence[Given]", work: Work) -> Outcomes:
        """See `Quantizer.apply_all`.

        Args:
            given: the parameters; there may be none.
            work: where.
        """

    def apply(self, residual: "Tensor | None", gradient: "Tensor", work: Work) -> "Steps[Outcome]":
        """See `Quantizer.apply`."""
        outcomes = yield from self.apply_all([Given(residual, gradient)], work)
        return Outcome(outcomes.values[0], lambda: outcomes.passed()[0])

    def apply_all(self, given: "Sequence[Given]", work: Work) -> "Steps[Outcomes]":
        """See `Quantizer.apply_all`."""
        yield from ()
        return self.quantize_all(given, work)


def joined(works: "Steps[list[Outcome]]") -> "Steps[Outcomes]":
    """The outcomes of parameters that were quantized one by one."""
    found = yield from works
    return Outcomes([each.values for each in found], lambda: [each.passed() for each in found])


class QuantizerLink(Quantizer):
    """A quantizer behind a sparse rule: what was selected is quantized; `kind` is among its fields."""

    if TYPE_CHECKING:
        kind: str


class Blocks(Settings):
    """Values that are quantized block by block."""

    block: Block = 2048
    """Number of elements that share a range or table; 0: the whole layer is one block."""


class Bins(Blocks, InOneCall):
    """Values in 2^bits bins a block."""

    first_field = "bits"

    bits: Bits = 8
    """Bits per element."""

    @property
    def value_bits(self) -> float:
        """See `Quantizer.value_bits`."""
        return float(self.bits)
