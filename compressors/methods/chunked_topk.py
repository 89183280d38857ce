"""chunked_topk: the largest magnitudes of every chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from ..ops.interface import LARGEST_CHUNK, Batch, Pending, Selected, Target
from ..ops.parts import Part
from ..wire.update import Chunks
from .base import BucketInput
from .quantizers import Quantile
from .sparse import AnyQuantizer, WholeValues

_Positions = Literal["auto", "packed32", "bitmap", "golomb_rice", "chunked"]


class ChunkedTopK(WholeValues):
    """SparseLoCo's message (arXiv 2508.15706): the largest elements of every chunk, in few bits."""

    first_field = "keep"
    has_tau = False

    kind: Literal["chunked_topk"] = "chunked_topk"
    chunk: int = Field(default=4096, ge=2, le=LARGEST_CHUNK)
    """Elements per chunk, a power of two. An index takes its logarithm in bits, 12 for 4096."""
    keep: int = Field(default=64, ge=1)
    """Elements per chunk that are sent."""
    quantize: AnyQuantizer | None = Quantile(bits=2)
    """The quantizer of the values that are sent; the error stays in the residual."""
    decay: float = Field(default=0.95, ge=0, le=1)
    """Factor of the residual from one iteration to the next (error feedback): 1 keeps it, 0 drops it."""
    codec: _Positions = "auto"  # type: ignore[assignment]  # chunked instead of raw
    """Encoding of the positions of what is sent; chunked uses indices within chunks."""

    @model_validator(mode="after")
    def _whole_chunks(self) -> ChunkedTopK:
        if self.chunk & (self.chunk - 1):
            raise ValueError(f"chunk = {self.chunk} is not a power of two")
        if self.keep > self.chunk:
            raise ValueError(f"keep = {self.keep} is more than a chunk has ({self.chunk})")
        return self

    @property
    def chunks(self) -> Chunks:
        return Chunks(self.chunk, self.keep)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], taus: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_largest_of_chunks(batch, target, self.chunk, self.keep)
