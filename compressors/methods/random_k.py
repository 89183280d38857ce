"""random_k: a share of the elements at random, the same on every worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from ..fields import Share
from ..lazy import np, torch
from ..ops.array import Numbers
from ..ops.interface import SMALLEST_TAU, Batch, Pending, Selected, Target
from ..ops.parts import Part
from ..ops.uniform import keys_of, positions_of
from .base import BucketInput, RuleOutput
from .sparse import WholeValues

_Positions = Literal["auto", "packed32", "bitmap", "golomb_rice", "drawn"]


class RandomK(WholeValues):
    """Random-k with memory (Stich et al. 2018, arXiv:1809.07599; arXiv:1901.09847).

    One element is drawn from each of k equal strata of a parameter. The choice follows from the seed, the
    iteration and the parameter's name, so all workers make the same one: a message has no positions, but a
    key for each parameter (codec `drawn`), and a sum of updates needs no other choice (sharded, ring).
    """

    first_field = "density"
    has_tau = False

    kind: Literal["random_k"] = "random_k"
    density: Share
    """The share of a parameter's elements to send, at least one element."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the choice; the same on all workers."""
    codec: _Positions = "auto"  # type: ignore[assignment]  # drawn instead of raw
    """Encoding of the positions of what is sent; drawn writes a key and a count for each parameter."""

    def _keys(self, parts: Sequence[Part], iteration: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        return keys_of(self.seed, iteration, 0, [part.name for part in parts])[:, 0].copy().view(np.uint32)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], taus: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        ops, sizes = given.ops, batch.sizes
        counts: Numbers = np.maximum((self.density * sizes).astype(np.int64), 1)
        ends, none = np.cumsum(counts), np.full(len(sizes), SMALLEST_TAU, np.float32)
        if not len(sizes):
            return lambda: Selected(ends, np.empty(0), np.empty(0, np.bool_), none)
        positions = positions_of(sizes, counts, self._keys(parts, given.iteration))
        _, ranges = ops.extremes(batch, target.readback)
        words = np.repeat(batch.rows[:, 3], counts) + positions << 1
        places = np.repeat(np.cumsum(sizes) - sizes, counts) + positions
        words_there, places_there = map(ops.tensor, ops.place_all([words.astype(np.uint32), places]))
        residuals = [residual for residual, _ in batch.pairs() if residual is not None]
        sent = slice(0, len(places))
        ops.tensor(target.words[sent]).copy_(words_there)
        ops.tensor(target.values[sent]).copy_(torch.cat(residuals)[places_there])
        ops.add_words(target.words[sent], ends, batch.rows, None, None)  # they become zero
        squares = ops.squares(residuals, target.readback)
        return lambda: Selected(ends, squares(), ranges().nonfinite, none)

    def run(self, given: BucketInput) -> RuleOutput:
        output = super().run(given)
        output.update.keys = self._keys(given.parts, given.iteration)
        return output
