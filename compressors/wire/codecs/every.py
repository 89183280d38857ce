"""every: all n elements are sent, in order; no positions are written."""

from ...errors import CorruptMessage
from ...ops.array import Bytes
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ..forms import FORMS
from ..update import Update
from .base import Head, OneByOne
from .values import read_values


class Every(OneByOne):
    """The values alone."""

    name = "every"
    code = 4
    turn = 5

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is None

    def size(self, update: Update) -> int:
        """Nothing."""
        return 0

    def write(self, update: Update, payload: Payload, at: int, size: int, ops: CpuOps) -> None:
        """Nothing."""

    def read(self, body: Bytes, head: Head, ops: CpuOps) -> Update:
        """See `OneByOne.read`."""
        if head.k != head.n or head.n == 0 or FORMS[head.form].has_tau:
            raise CorruptMessage(f"{head.k} of {head.n} elements of {head.form} are not every element")
        values = read_values(body, head, ops)
        return Update(head.form, head.n, head.tau, None, values)
