"""Types and the base class of a compressor's configuration."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SMALLEST_TAU = 2.0**-126
"""The smallest normal float32: kernels and messages hold tau in that type."""
LARGEST_TAU = 2.0**119
"""255 times this is a finite float32, with room for a sum."""


def _fits_float32(tau: float) -> float:
    span = f"({SMALLEST_TAU:.2g} to {LARGEST_TAU:.2g})"
    if not tau > 0:
        raise ValueError(f"must be greater than 0 {span}")
    if not SMALLEST_TAU <= tau <= LARGEST_TAU:
        raise ValueError(f"is not a threshold that float32 can hold {span}")
    return tau


Tau = Annotated[float, AfterValidator(_fits_float32)]
Share = Annotated[float, Field(gt=0, le=1)]
"""A part of all elements, such as 0.01."""

Symbols = Literal["auto", "raw", "huffman"]
"""The codecs of symbols: plain bits, or a code by their frequencies."""


LARGEST_CHUNK = 1 << 16
"""Elements of a chunk, at most."""


def check_chunks(chunk: int, keep: int) -> None:
    """Raises ValueError for a chunk or a number to keep that is out of its range."""
    if not 2 <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1):
        raise ValueError(f"chunk must be a power of two, 2 to {LARGEST_CHUNK}, not {chunk}")
    if not 0 <= keep <= chunk:
        raise ValueError(f"keep must be 0 to chunk = {chunk}, not {keep}")


Form = Literal[
    "bgt", "qgt", "strom", "f32", "fp16", "bf16", "fp8", "linear", "quantile", "steps", "bits", "patch"
]
"""The encoding of an update's values, a message's `form`, whichever rule chose the values."""
ThresholdRule = Literal["wgt", "bgt", "qgt", "strom"]
"""How an element that reaches the threshold is sent (Anoosheh, section 2.1; Strom, section 2.6)."""


class Settings(BaseModel):
    """A group of fields: frozen, strict about names, described by its docstrings.

    The class that implements them is named by its address, `package.module:Class`, and imported when it is
    created (`registry.implementation_of`): reading fields needs neither torch nor NumPy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    first_field: ClassVar[str] = ""
    """The field that needs no name in a chain; empty if there is none."""
    aims: ClassVar[bool] = False
    """Whether that is a target density."""
    needs: ClassVar[Mapping[str, str]] = {}
    """Class variables that a class must have to be registered, and what they are."""

    def __hash__(self) -> int:
        # A field may be a dictionary, which has no hash. Equal models have one hash: -0.0 equals 0.0.
        return hash((type(self), self.model_dump_json().replace("-0.0", "0.0")))

    @property
    def aim(self) -> float | None:
        """The target density; None if there is none, or if it changes by itself."""
        changes = getattr(self, "warmup", None) is not None
        return float(getattr(self, self.first_field)) if self.aims and not changes else None

    def aimed_at(self, share: float) -> Self:
        """A copy with another target density, which a method may round; its messages have the same format.

        Raises ValueError where it has no `aim`.
        """
        if self.aim is None:
            raise ValueError(f"{self.line_name()} has no target density")
        return self.model_copy(update={self.first_field: share})

    @classmethod
    def line_name(cls) -> str:
        """The name in a chain: the kind, or that of the class if it has no kind."""
        kind = cls.model_fields.get("kind")
        return cls.__name__.lower() if kind is None else str(kind.default)

    @classmethod
    def problem(cls) -> str:
        """The reason why the class cannot be registered; empty if there is none."""
        if "kind" not in cls.model_fields or not isinstance(cls.model_fields["kind"].default, str):
            return f'{cls.__name__} needs a field such as kind: Literal["mine"] = "mine"'
        if cls.first_field and cls.first_field not in cls.model_fields:
            return f"{cls.__name__}.first_field = {cls.first_field} is none of its fields"
        needs = [need for kind in reversed(cls.__mro__) for need in getattr(kind, "needs", {}).items()]
        missing = [f"{cls.__name__} needs {name}, {what}" for name, what in needs if not hasattr(cls, name)]
        return next(iter(missing), "")


class Group(Settings):
    """Fields of one option, such as those of `clip(5, to=3)`; the field has the name of the class."""
