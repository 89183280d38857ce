"""One bucket of gradients into messages, and messages back into a bucket, on a device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..bucket.compressor import Compressor, Incoming, Outgoing, of_worker
from ..bucket.layout import Layout, Part, PartTally, Unit
from ..config.methods import CompressedMethod
from ..errors import CorruptMessage
from ..ops.cuda.crc32 import Checksums
from ..ops.cuda.looking import count_nonfinite
from ..ops.cuda.payloads import Found, find_messages
from ..ops.cuda.reports import Reports
from ..ops.cuda.returns import Returns, Steps, run_together
from ..ops.cuda.runtime import Runtime
from ..rules import Context
from ..rules.dense import DenseRule
from ..rules.sparse import SparseRule
from ..wire import message
from ..wire.codecs.base import Bytes
from ..wire.forms import FORMS
from ..wire.update import NO_TAU, Update
from .applying import add_to_bucket, put_back
from .decoding import Decoded, Placed, decode
from .dense import DenseOnDevice
from .encoding import Wanted, write_all
from .rules import DeviceRan, DeviceRule, DeviceTally, find_awake, squares
from .sparse import SparseOnDevice

_Blame = Callable[[int, CorruptMessage], CorruptMessage]
"""Says whose message an error is about."""


class DeviceCompressor(Compressor):
    """A method at work on buckets that lie on a device; see `Compressor`.

    Payloads are uint8 tensors there. How often the host waits does not depend on how many parameters a bucket
    has: twice to compress with a fixed threshold; once more each for held-back parameters, for a sample that
    decides thresholds, for the bits of `entropy`, and for Huffman codes; and two to four times to read.
    """

    def __init__(self, config: CompressedMethod, runtime: Runtime) -> None:
        """Prepares the device.

        Args:
            config: the method.
            runtime: the device on which parts, payloads and totals lie.
        """
        super().__init__(config)
        self._runtime, self._checksums = runtime, Checksums(runtime)
        if isinstance(self.rule, SparseRule):
            self._passes: DeviceRule = SparseOnDevice(runtime, self.rule)
        else:
            assert isinstance(self.rule, DenseRule)
            self._passes = DenseOnDevice(runtime, self.rule)

    def compress(self, parts: Sequence[Part], layout: Layout, context: Context) -> Outgoing:
        """See `Compressor.compress`."""
        for part in parts:
            if part.residual is not None and self.config.decay != 1:
                part.residual.mul_(self.config.decay)
        awake = find_awake(self._runtime, parts, context)
        passed, returned = Returns(self._runtime), Returns(self._runtime)
        begun = self._passes.begin(layout.units, parts, context, awake, passed)
        exempt = self._look_at_exempt(parts, layout, passed)
        passed.fetch()
        rans = begun.finish(returned)
        refused = self._refused(rans, exempt, layout)
        if refused is not None:
            return self._refuse(refused, rans, parts, layout, returned)
        wanted, units = [], []
        tallies: dict[int, DeviceTally] = {}
        for ran in rans:
            places = zip(ran.unit.places, ran.tallies, strict=True)
            tallies |= {place.ordinal: tally for place, tally in places}
            for update in ran.updates:
                # A parameter that is held back sends nothing, which has no chunks.
                codec = "auto" if self._codec == "chunked" and update.chunks is None else self._codec
                wanted.append(Wanted(update, codec, self._symbols))
                units.append(ran.unit)
        if layout.exempt is not None:
            wanted.append(Wanted(self._sent_whole(parts, layout.exempt)))
        written = write_all(self._runtime, self._checksums, wanted, returned)
        payload = self._runtime.tensor(written.payload)
        messages = list(zip(map(self._runtime.tensor, written.messages), units, strict=False))
        return Outgoing(payload, messages, self._tallies(parts, layout, tallies))  # type: ignore[arg-type]

    def _look_at_exempt(self, parts: Sequence[Part], layout: Layout, returns: Returns) -> Reports | None:
        """Reports whether parameters that are sent whole are finite."""
        if layout.exempt is None:
            return None
        reports = Reports(self._runtime, len(layout.exempt.places), returns)
        for place in layout.exempt.places:
            gradient = self._runtime.array(parts[place.ordinal].gradient.float())
            count_nonfinite(self._runtime, gradient, reports, gradient_type="float32")
        return reports

    def _refused(self, rans: list[DeviceRan], exempt: Reports | None, layout: Layout) -> int | None:
        """The parameter that is named where some are not finite."""
        found = [ran.refused for ran in rans if ran.refused is not None][:1]
        if exempt is not None and layout.exempt is not None:
            whole = zip(layout.exempt.places, exempt.fetched(), strict=True)
            found += [place.ordinal for place, report in whole if report.nonfinite][:1]
        return min(found, default=None)

    def _refuse(
        self, refused: int, rans: list[DeviceRan], parts: Sequence[Part], layout: Layout, returns: Returns
    ) -> Outgoing:
        for ran in rans:
            for update in ran.updates:
                put_back(self._runtime, update, ran.unit, parts)
        kept = [squares(self._runtime, part.residual, returns) for part in parts]
        header = message.write_nonfinite(self.refusal(layout, refused))
        payload = self._runtime.tensor(self._runtime.place(header))
        returns.fetch()
        tallies = [
            PartTally(part.name, part.elements, 0, each()) for part, each in zip(parts, kept, strict=True)
        ]
        return Outgoing(payload, [], tallies)  # type: ignore[arg-type]

    def _sent_whole(self, parts: Sequence[Part], exempt: Unit) -> Update:
        gradients = [parts[place.ordinal].gradient.float() for place in exempt.places]
        values = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        return Update("f32", exempt.n, NO_TAU, None, self._runtime.array(values))

    def _tallies(
        self, parts: Sequence[Part], layout: Layout, found: dict[int, DeviceTally]
    ) -> list[PartTally]:
        tallies = {ordinal: each.settled() for ordinal, each in found.items()}
        for place in layout.exempt.places if layout.exempt else ():
            bits = FORMS["f32"].paper_bits * place.elements
            name = parts[place.ordinal].name
            tallies[place.ordinal] = PartTally(name, place.elements, place.elements, 0.0, None, bits)
        return [
            tallies.get(ordinal, PartTally(part.name, part.elements, 0, 0.0))
            for ordinal, part in enumerate(parts)
        ]

    def put_back(self, outgoing: Outgoing, parts: Sequence[Part]) -> None:
        """See `Compressor.put_back`."""
        if not outgoing.messages:
            return
        payload = self._runtime.array(torch.as_tensor(outgoing.payload))
        size, looks, last = int(payload.size), Returns(self._runtime), Returns(self._runtime)
        (found,) = find_messages(self._runtime, payload, size, [size], len(outgoing.messages) + 1)
        assert not isinstance(found, str), "this worker's own payload"
        units = [unit for _, unit in outgoing.messages]  # what was sent whole stands behind them
        placed = [Placed(payload, one, unit.n) for one, unit in zip(found, units, strict=False)]
        works = [decode(self._runtime, self._checksums, each, looks, last) for each in placed]
        decoded = run_together(looks, works)
        last.fetch()
        for each, unit in zip(decoded, units, strict=True):
            each.check()
            assert isinstance(each.update, Update)
            put_back(self._runtime, each.update, unit, parts)

    def read(self, payload: Bytes, layout: Layout) -> Incoming:
        """What another worker sent: a tensor, or bytes in the CPU's memory; see `Compressor.read`."""
        row = torch.as_tensor(payload)
        return self._read_rows(row.reshape(1, -1), [row.numel()], layout, lambda _, reason: reason)[0]

    def read_all(self, padded: Tensor, sizes: Sequence[int], layout: Layout) -> list[Incoming]:
        """See `Compressor.read_all`; `padded` may lie in the CPU's memory too, best in pinned memory."""
        return self._read_rows(padded, sizes, layout, of_worker)

    def _read_rows(
        self, padded: Tensor, sizes: Sequence[int], layout: Layout, blame: _Blame
    ) -> list[Incoming]:
        runtime, stride = self._runtime, padded.shape[1]
        rows = runtime.array(runtime.bring(padded).reshape(-1))
        told = find_messages(runtime, rows, stride, sizes, self.most_messages(layout))
        looks, last = Returns(runtime), Returns(runtime)
        works: list[Steps[Decoded]] = []
        about: list[list[Unit | None]] = []
        for rank, found in enumerate(told):
            with _blaming(rank, blame):
                payload = rows[rank * stride : rank * stride + sizes[rank]]
                messages, units = self._expected(found, layout)
                about.append(units)
            for one, unit in zip(messages, units, strict=True):
                placed = Placed(payload, one, layout.bucket_elements if unit is None else unit.n)
                steps = decode(runtime, self._checksums, placed, looks, last)
                works.append(_blamed(steps, rank, blame))
        decoded = iter(run_together(looks, works))
        last.fetch()
        incoming = []
        for rank, units in enumerate(about):
            with _blaming(rank, blame):
                incoming.append(self._checked([(next(decoded), unit) for unit in units], layout))
        return incoming

    def _expected(self, found: list[Found] | str, layout: Layout) -> tuple[list[Found], list[Unit | None]]:
        """A payload's messages, and what each is about; None for a refusal."""
        if isinstance(found, str):
            raise CorruptMessage(found)
        if len(found) == 1 and message.is_refusal(found[0].header):
            return found, [None]
        return found, [*self.units_of(len(found), layout)]

    def _checked(self, decoded: list[tuple[Decoded, Unit | None]], layout: Layout) -> Incoming:
        """What a payload holds, once all of it was found good."""
        incoming = []
        for each, unit in decoded:
            each.check()
            if unit is None:
                return self.check_refusal(each.update)
            incoming.append((self.check_update(each.update, unit, layout), unit))
        self.check_taus([update for update, unit in incoming if unit is not layout.exempt])
        return incoming

    def add(self, incoming: list[tuple[Update, Unit]], total: Tensor) -> None:
        """See `Compressor.add`; does not wait."""
        for update, unit in incoming:
            add_to_bucket(self._runtime, update, unit, total)


@contextmanager
def _blaming(rank: int, blame: _Blame) -> Iterator[None]:
    """Errors say whose message they are about."""
    try:
        yield
    except CorruptMessage as reason:
        raise blame(rank, reason) from None


def _blamed(steps: Steps[Decoded], rank: int, blame: _Blame) -> Steps[Decoded]:
    with _blaming(rank, blame):
        return (yield from steps)
