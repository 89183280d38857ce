"""Turns one bucket of gradients into messages, and messages back into a bucket."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config.methods import CompressedMethod, Exempt, Method
from ..errors import CorruptMessage
from ..ops.array import Array, Bytes
from ..ops.cpu.ops import CpuOps
from ..ops.faults import Faults
from ..ops.interface import Ops
from ..ops.results import Found
from ..ops.returns import Returns, Steps, at_once, run, together
from ..rules.base import Context, Ran, Rule, Turn
from ..wire import message
from ..wire.codecs import codec_by_name
from ..wire.columns.reading import read as read_columns
from ..wire.columns.updates import UpdateColumns
from ..wire.columns.writing import plan as plan_columns
from ..wire.forms import FORMS
from ..wire.message import NonFinite, Planned
from ..wire.update import NO_TAU, Update
from .adding import add_all, put_back, sum_all
from .incoming import ColumnsReceived, Incoming, Received
from .layout import Layout, Part, PartTally, Unit, lay_out


@dataclass(frozen=True)
class Outgoing:
    """What a worker sends for one bucket."""

    payload: Array
    """uint8, the messages one after the other; on the device of the gradients."""
    units: list[Unit]
    """What its messages that took something out of residuals are about; they come first."""
    tallies: list[PartTally]
    """Of every parameter, in order."""


_FEW = 4
"""Messages below which it takes less time to take them one by one."""
_Decoded = list[tuple[Update | NonFinite, Faults]]
_FoundByRank = list[list[Found] | str]
"""The messages of each payload, or what is wrong with their lengths."""
_Blame = Callable[[int, CorruptMessage], CorruptMessage]
"""Says which worker's message an error is about."""


class Compressor:
    """Applies a method to buckets. It has no state: state is in the parts and the context.

    On a GPU, the number of times that the host waits does not depend on the number of parameters in a bucket:
    twice to compress with a fixed threshold; once more each for held-back parameters, for a sample that
    decides thresholds, for the bits of `entropy`, and for Huffman codes; and two to four times to read.
    """

    def __init__(self, config: CompressedMethod, ops: Ops | None = None) -> None:
        """Prepares.

        Args:
            config: the method.
            ops: of the device of gradients, residuals and totals; by default the CPU with one thread.

        Raises:
            ValueError: two codecs of other packages have one code.
        """
        self.config = config
        self.ops: Ops = CpuOps() if ops is None else ops
        self.rule: Rule = config.build()
        self._codec, self._symbols = config.position_codec, config.symbol_codec
        if self._codec != "auto":
            codec_by_name(self._codec)  # from now on, readers of messages know it
        self.keeps_residuals = bool(self.rule.needs_residual or config.decay)
        """Whether parameters that are not exempt have a residual."""
        self.corrects_momentum = bool(config.own_momentum)
        """Whether they have a velocity."""

    def of(self, method: Method) -> "Compressor":
        """This compressor, or one of another method on the same device.

        Args:
            method: this compressor's, or what `Method.aimed_at` made of it: layouts stay the same.
        """
        if method is self.config:
            return self
        assert isinstance(method, CompressedMethod)
        return Compressor(method, self.ops)

    def layout(self, names: Sequence[str], sizes: Sequence[int]) -> Layout:
        """How a bucket of these parameters is cut into messages."""
        exempt = [is_exempt(self.config.exempt, name, size) for name, size in zip(names, sizes, strict=True)]
        return lay_out(sizes, exempt.__getitem__, by_parameter=self.rule.by_parameter)

    def compress(self, parts: Sequence[Part], layout: Layout, context: Context) -> Outgoing:
        """Runs the rule over every parameter and writes what is sent.

        Args:
            parts: the bucket's parameters in their order; residuals and velocities are changed in place.
            layout: of these parameters.
            context: see there.

        Returns:
            The payload. If a parameter's residual + gradient is not finite somewhere, a payload that says so:
            then nothing is sent, and residuals gain the finite elements.
        """
        ops = self.ops
        if self.config.decay != 1:
            for part in parts:
                if part.residual is not None:
                    part.residual.mul_(self.config.decay)
        awake, looks, returned = self._awake(parts, context), Returns(ops), Returns(ops)
        turn = Turn(layout.units, parts, awake, context, ops, looks, returned)
        whole = [] if layout.exempt is None else [parts[place.ordinal] for place in layout.exempt.places]
        wide = [part.gradient.float() for part in whole]
        finite = ops.finite(wide, looks)
        ran = run(looks, self.rule.run(turn))
        refused = [] if ran.refused is None else [ran.refused]
        if layout.exempt is not None:
            places = zip(layout.exempt.places, finite(), strict=True)
            refused += [place.ordinal for place, good in places if not good][:1]
        if refused:
            return self._refuse(min(refused), ran, parts, layout, returned)
        plans = [self._plan(ran.updates, returned)]
        if layout.exempt is not None:
            values = ops.array(wide[0] if len(wide) == 1 else torch.cat(wide))
            update = Update("f32", layout.exempt.n, NO_TAU, None, values)
            plans.append(message.plan_all([update], ["auto"], self._symbols, ops, returned))
        payload = message.write_planned(run(returned, together(plans)), ops)
        return Outgoing(payload, ran.units, self._tallies(parts, whole, turn))

    def _plan(self, updates: Sequence[Update], returned: Returns) -> Steps[Planned]:
        """How a rule's updates are going to be written."""
        if isinstance(self.ops, CpuOps) and isinstance(updates, UpdateColumns) and len(updates) >= _FEW:
            planned = plan_columns(updates, self._codec, self._symbols, self.ops.threads)
            if planned is not None:
                return at_once(planned)
        each = list(updates)
        codecs = [self._codec_of(update) for update in each]
        return message.plan_all(each, codecs, self._symbols, self.ops, returned)

    def _awake(self, parts: Sequence[Part], context: Context) -> set[int]:
        """Ordinals of the parameters that are not held back."""
        if not context.hold_back_zeros:
            return set(range(len(parts)))
        nonzero = self.ops.nonzero([part.gradient for part in parts])
        return {ordinal for ordinal, found in enumerate(nonzero) if found}

    def _codec_of(self, update: Update) -> str:
        # A parameter that is held back sends nothing, so it has no chunks.
        return "auto" if self._codec == "chunked" and update.chunks is None else self._codec

    def _tallies(self, parts: Sequence[Part], whole: Sequence[Part], turn: Turn) -> list[PartTally]:
        found, bits = turn.tallies.settle(), FORMS["f32"].paper_bits
        sent_whole = {part.name for part in whole}
        tallies = []
        for ordinal, part in enumerate(parts):
            if part.name in sent_whole:
                tallies.append(
                    PartTally(part.name, part.elements, part.elements, 0.0, None, bits * part.elements)
                )
            else:
                tallies.append(found.get(ordinal) or PartTally(part.name, part.elements, 0, 0.0))
        return tallies

    def _refuse(
        self, refused: int, ran: Ran, parts: Sequence[Part], layout: Layout, returned: Returns
    ) -> Outgoing:
        """What is sent instead of updates, which go back to where they came from."""
        for update, unit in zip(ran.updates, ran.units, strict=True):
            put_back(update, unit, parts, self.ops)
        kept = [self.ops.squares(part.residual, returned) for part in parts]
        payload = self.ops.place(message.write_nonfinite(self.refusal(layout, refused)))
        returned.fetch()
        tallies = [
            PartTally(part.name, part.elements, 0, squares())
            for part, squares in zip(parts, kept, strict=True)
        ]
        return Outgoing(payload, [], tallies)

    def put_back(self, outgoing: Outgoing, parts: Sequence[Part]) -> None:
        """Adds what was taken out for a step that is left out to the residuals it came from."""
        units, payload = outgoing.units, outgoing.payload
        if not units:
            return
        size = int(payload.size)
        (found,) = self.ops.find_messages(payload, size, [size], len(units) + 1)
        assert not isinstance(found, str), "this worker's own payload"
        looks, last = Returns(self.ops), Returns(self.ops)
        mine = found[: len(units)]  # what was sent whole comes after them
        read = run(looks, self._decode(payload, mine, [unit.n for unit in units], looks, last))
        last.fetch()
        for (update, faults), unit in zip(read, units, strict=True):
            faults.check()
            assert isinstance(update, Update)
            put_back(update, unit, parts, self.ops)

    def refusal(self, layout: Layout, ordinal: int) -> NonFinite:
        """What is sent instead of updates if a parameter is not finite."""
        tau = np.float32(1) if FORMS[self.rule.form].has_tau else NO_TAU
        return NonFinite(self.rule.form, layout.bucket_elements, tau, ordinal)

    def read(self, payload: Bytes | Tensor, layout: Layout) -> Incoming:
        """What another worker sent for a bucket of the same layout.

        Args:
            payload: uint8, here or in the CPU's memory.
            layout: of the bucket.

        Raises:
            CorruptMessage: a message is damaged, of another method, or does not fit the layout.
        """
        row = torch.as_tensor(payload)
        return self._read_rows(row.reshape(1, -1), [row.numel()], layout, _same)[0]

    def read_all(self, padded: Tensor, sizes: Sequence[int], layout: Layout) -> list[Incoming]:
        """What every worker sent for a bucket of the same layout.

        Args:
            padded: uint8 [workers, longest], each worker's payload and padding; here, or in the CPU's memory,
                best in pinned memory.
            sizes: bytes of the payloads.
            layout: of the bucket.

        Raises:
            CorruptMessage: see `read`; it names the worker.
        """
        return self._read_rows(padded, sizes, layout, of_worker)

    def read_each(self, payloads: Sequence[Tensor], layout: Layout) -> list[Incoming]:
        """`read_all` of payloads wherever they lie in the CPU's memory, uint8, where buckets are, too."""
        assert self.ops.on_host
        arrays, most = [self.ops.array(each) for each in payloads], self._most_messages(layout)

        def found() -> _FoundByRank:
            return [self.ops.find_messages(each, each.size, [each.size], most)[0] for each in arrays]

        return self._read(arrays, found, layout, of_worker)

    def _read_rows(
        self, padded: Tensor, sizes: Sequence[int], layout: Layout, blame: _Blame
    ) -> list[Incoming]:
        stride, most = padded.shape[1], self._most_messages(layout)
        rows = self.ops.array(self.ops.bring(padded).reshape(-1))
        begins = [rank * stride for rank in range(len(sizes))]
        payloads = [rows[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
        return self._read(payloads, lambda: self.ops.find_messages(rows, stride, sizes, most), layout, blame)

    def _read(
        self, payloads: Sequence[Any], find: Callable[[], _FoundByRank], layout: Layout, blame: _Blame
    ) -> list[Incoming]:
        """What payloads hold, uint8; `find` cuts them into messages, if they are to be read one by one."""
        at_once = [self._read_columns(payload, layout) for payload in payloads]
        if all(each is not None for each in at_once):
            return [each for each in at_once if each is not None]
        looks, last = Returns(self.ops), Returns(self.ops)
        works: list[Steps[_Decoded]] = []
        about: list[list[Unit]] = []
        for rank, found in enumerate(find()):
            with _blaming(rank, blame):
                if isinstance(found, str):
                    raise CorruptMessage(found)
                refused = len(found) == 1 and message.is_refusal(found[0].header)
                about.append([] if refused else self._units_of(len(found), layout))
                elements = [unit.n for unit in about[-1]] or [layout.bucket_elements] * len(found)
            works.append(_blamed(self._decode(payloads[rank], found, elements, looks, last), rank, blame))
        read = run(looks, together(works))
        last.fetch()
        incoming: list[Incoming] = []
        for rank, (decoded, units) in enumerate(zip(read, about, strict=True)):
            with _blaming(rank, blame):
                incoming.append(self._checked(decoded, units, layout))
        return incoming

    def _read_columns(self, payload: Any, layout: Layout) -> Incoming | None:
        """What a payload holds, if it is easily told that it is right."""
        if not isinstance(self.ops, CpuOps):
            return None
        form, units, exempt = self.rule.form, list(layout.units), layout.exempt
        if FORMS[form].sign_apart:
            units *= self._most_messages(layout) - 1  # tau is what a value means: one message for each
        if len(units) < _FEW or form == "wgt" or message.is_alone(payload):
            return None
        n = layout.n if len(units) == len(layout.units) else np.full(len(units), units[0].n, np.int64)
        found = read_columns(form, n, payload, self.ops.threads, behind=0 if exempt is None else 1)
        if found is None:
            return None
        columns, end = found
        # Positions count from a unit's base; that of a parameter alone is where it begins.
        starts = layout.starts if len(units) == len(layout.units) else np.full(len(units), units[0].base)
        received = ColumnsReceived(columns, units[: len(columns)], starts[: len(columns)])
        return received if exempt is None else self._with_whole(received, payload[end:], exempt)

    def _with_whole(self, received: ColumnsReceived, last: Any, exempt: Unit) -> ColumnsReceived | None:
        """The same, and what was sent whole, from the last message; None if that is not right."""
        try:
            update = message.read(last, exempt.n, self.ops)
        except CorruptMessage:
            return None
        if isinstance(update, NonFinite) or update.form != "f32" or update.words is not None:
            return None
        return replace(received, whole=((update, exempt),))

    def _decode(
        self, payload: Any, found: Sequence[Found], elements: Sequence[int], looks: Returns, last: Returns
    ) -> Steps[_Decoded]:
        """What messages seem to hold. Do not use it before `last` is fetched and their faults are checked."""
        faults = [self.ops.faults(last) for _ in found]
        updates = yield from message.read_all(payload, found, elements, faults, self.ops, looks)
        return list(zip(updates, faults, strict=True))

    def _checked(self, decoded: _Decoded, units: Sequence[Unit], layout: Layout) -> Incoming:
        """What a payload holds, once all of it was found good."""
        for update, faults in decoded:
            faults.check()
            if isinstance(update, NonFinite):
                if units:
                    raise CorruptMessage("a refusal among updates")
                self._check_form(update.form)
                return update
        incoming: list[tuple[Update, Unit]] = []
        for (update, _), unit in zip(decoded, units, strict=True):
            assert isinstance(update, Update)
            if unit is not layout.exempt:
                self._check_form(update.form)
            elif update.form != "f32" or update.words is not None:
                raise CorruptMessage(f"{update.form} where parameters are sent whole")
            incoming.append((update, unit))
        self._check_taus([update for update, unit in incoming if unit is not layout.exempt])
        return incoming

    def _most_messages(self, layout: Layout) -> int:
        """How many messages a payload may have."""
        return max(sum(len(unit.places) for unit in layout.units), 1) + 1

    def _units_of(self, messages: int, layout: Layout) -> list[Unit]:
        """What each message of a payload must be about, in order.

        Raises:
            CorruptMessage: there are too few of them, or too many.
        """
        if layout.exempt is not None:
            if not messages:
                raise CorruptMessage("the message of the parameters that are sent whole is missing")
            messages -= 1
        units = list(layout.units)
        if messages and FORMS[self.rule.form].sign_apart:
            units *= messages  # tau is what a value means: one message for each
        if messages != len(units):
            raise CorruptMessage(f"{messages} messages for {len(units)} parameters")
        return units if layout.exempt is None else [*units, layout.exempt]

    def _check_taus(self, updates: Sequence[Update]) -> None:
        """Whether the messages of one bucket are in order."""
        if FORMS[self.rule.form].sign_apart and any(low.tau >= high.tau for low, high in pairwise(updates)):
            raise CorruptMessage("messages of one bucket do not ascend in tau")

    def _check_form(self, form: str) -> None:
        if form != self.rule.form:
            raise CorruptMessage(f"it is of {form}, this worker sends {self.rule.form}")

    def total(self, incoming: Sequence[Incoming], divisor: int, total: Tensor) -> None:
        """Fills a bucket with the sum of workers' updates, added in their order, over a divisor.

        Args:
            incoming: of every worker; a refusal counts as zeros.
            divisor: how many workers a mean is taken over; 1 for the sum.
            total: float32 [bucket elements], whatever it holds.
        """
        sum_all([each for each in incoming if not isinstance(each, NonFinite)], divisor, total, self.ops)

    def add(self, incoming: Received, total: Tensor) -> None:
        """Adds one worker's updates to a bucket, float32 [bucket elements]."""
        add_all(incoming, total, self.ops)


def is_exempt(exempt: Exempt, name: str, elements: int) -> bool:
    """Whether a parameter is sent whole."""
    return elements < exempt.smaller_than or any(fnmatchcase(name, pattern) for pattern in exempt.names)


def of_worker(rank: int, reason: CorruptMessage) -> CorruptMessage:
    """The same reason, and the worker whose message it is about."""
    return CorruptMessage(f"the message of worker {rank}: {reason}")


def _same(_: int, reason: CorruptMessage) -> CorruptMessage:
    return reason


@contextmanager
def _blaming(rank: int, blame: _Blame) -> Iterator[None]:
    """Makes errors say which worker's message they are about."""
    try:
        yield
    except CorruptMessage as reason:
        raise blame(rank, reason) from None


def _blamed(steps: Steps[_Decoded], rank: int, blame: _Blame) -> Steps[_Decoded]:
    with _blaming(rank, blame):
        return (yield from steps)
