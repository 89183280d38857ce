"""Updates of one form as columns; a sequence, so that whoever takes them one by one can."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ...ops.array import Array
from ...ops.offsets import Numbers
from ..forms import FORMS, Form
from ..update import NO_TAU, Chunks, Update
from .values import SharedValues
from .words import Words

_NO_VALUES = np.empty(0, np.uint8)


@dataclass(frozen=True)
class UpdateColumns(Sequence[Update]):
    """m updates."""

    form: Form
    n: Numbers
    """int64 [m], elements of each one's gradient."""
    words: Words | None
    """None where all elements are sent."""
    values: SharedValues | None
    """None for forms without any."""
    taus: NDArray[np.float32] | None = None
    """float32 [m]; None for forms without one."""
    chunks: Chunks | None = None
    """What positions are regular in, where there are as many as that makes."""

    def __len__(self) -> int:
        return len(self.n)

    def __iter__(self) -> Iterator[Update]:
        return (self[number] for number in range(len(self)))

    @overload
    def __getitem__(self, number: int) -> Update: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Update]: ...
    def __getitem__(self, number: int | slice) -> Update | Sequence[Update]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        n, words, chunks = int(self.n[number]), None, None
        if self.words is not None:
            end = int(self.words.ends[number])
            words = self.words.array[end - int(self.words.counts[number]) : end]
            if self.chunks is not None and self.chunks.count(n) == int(words.size):
                chunks = self.chunks
        tau = NO_TAU if self.taus is None else self.taus[number]
        values = self.no_values if self.values is None else self.values[number]
        return Update(self.form, n, tau, words, values, chunks)

    @property
    def no_values(self) -> Array:
        """What stands for the values of forms without any, in the memory of the words."""
        return _NO_VALUES if self.words is None else self.words.array[:0].view(FORMS[self.form].dtype)

    @property
    def counts(self) -> Numbers:
        """int64 [m], elements sent of each."""
        return self.n if self.words is None else self.words.counts

    @property
    def value_bits(self) -> int:
        """Value bits of an element sent, as Anoosheh counts them."""
        return FORMS[self.form].paper_bits if self.values is None else self.values.value_bits
