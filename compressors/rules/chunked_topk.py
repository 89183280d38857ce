"""chunked_topk: the largest magnitudes of every chunk, the same number from each (arXiv 2508.15706)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from ..method.base import SMALLEST_TAU
from ..method.sparse import AnyQuantizer, WholeValues, positions
from ..quantizers.quantile import QuantileLink
from .selection import Memories, Selection

if TYPE_CHECKING:
    from ..bucket.layout import Part
    from ..ops.interface import Ops
    from ..ops.readback import Pending, Readback
    from ..ops.results import Batch, Selected

    Positions = str
else:
    Positions = positions("packed32", "bitmap", "golomb_rice", "chunked")


class ChunkedTopK(WholeValues):
    """SparseLoCo's message (arXiv 2508.15706): the largest elements of every chunk, in few bits."""

    first_field = "keep"

    kind: Literal["chunked_topk"] = "chunked_topk"
    chunk: int = Field(default=4096, ge=2, le=65536)
    """Elements per chunk, a power of two. An index takes its logarithm in bits, 12 for 4096."""
    keep: int = Field(default=64, ge=1)
    """Elements per chunk that are sent."""
    quantize: AnyQuantizer | None = QuantileLink(bits=2)
    """The quantizer of the values that are sent; the error stays in the residual."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """Factor of the residual from one iteration to the next (error feedback): 1 keeps it, 0 drops it."""
    codec: Positions = "auto"
    """Encoding of the positions of what is sent; chunked uses indices within chunks."""

    @model_validator(mode="after")
    def _whole_chunks(self) -> "ChunkedTopK":
        if self.chunk & (self.chunk - 1):
            raise ValueError(f"chunk = {self.chunk} is not a power of two")
        if self.keep > self.chunk:
            raise ValueError(f"keep = {self.keep} is more than a chunk has ({self.chunk})")
        return self

    @property
    def aim(self) -> float | None:
        """See `Method.aim`."""
        return self.keep / self.chunk

    def aimed_at(self, share: float) -> Self:
        """See `Method.aimed_at`: a whole number of each chunk, at least one."""
        return self.model_copy(update={"keep": min(self.chunk, max(1, round(share * self.chunk)))})

    def selection(self) -> "ByChunk":
        """See `SparseMethod.selection`."""
        return ByChunk(self)


class ByChunk(Selection):
    """The largest magnitudes of every chunk, the same number from each."""

    rule = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        from ..wire.update import Chunks  # noqa: PLC0415 (torch)

        self.chunks = Chunks(config.chunk, config.keep)

    def aims(self, parts: Sequence["Part"], iteration: int, memories: Memories) -> list[float]:
        """None; any number does."""
        return [SMALLEST_TAU] * len(parts)

    def take(
        self,
        batch: "Batch",
        samples: Sequence["Part"],
        aims: Sequence[float],
        ops: "Ops",
        readback: "Readback",
    ) -> "Pending[Selected]":
        """See `Selection.take`."""
        assert self.chunks is not None
        return ops.take_largest_of_chunks(batch, self.chunks.chunk, self.chunks.keep, readback)
