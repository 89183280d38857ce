"""every: all n elements are sent, in order; no positions are written."""

from ...errors import CorruptMessage
from ..forms import FORMS
from ..update import Update
from .base import Bytes, Codec, Head
from .values import PlannedValues, SizedValues, read_values


class Every(Codec):
    """The values alone."""

    name = "every"
    code = 4

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is None

    def size(self, update: Update, values: SizedValues) -> int:
        """See `Codec.size`."""
        return values.size

    def encode(self, update: Update, values: PlannedValues, body: Bytes) -> None:
        """See `Codec.encode`."""
        values.write(body)

    def decode(self, body: Bytes, head: Head) -> Update:
        """See `Codec.decode`."""
        if head.k != head.n or head.n == 0 or FORMS[head.form].has_tau:
            raise CorruptMessage(f"{head.k} of {head.n} elements of {head.form} are not every element")
        values = read_values(body, head.form, head.k, head.symbols)
        return Update(head.form, head.n, head.tau, None, values)
