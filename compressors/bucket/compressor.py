"""Turns one bucket of gradients into messages, and messages back into a bucket."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import CorruptMessage
from ..methods import CompressedMethod
from ..methods.base import BucketInput, Context, Exempt, RuleOutput
from ..ops.array import Array, Flags, host
from ..ops.cpu.summing import amounts_of, joined, sum_updates
from ..ops.interface import Ops, ops_for
from ..ops.parts import Part, Parts, Tallies
from ..ops.readback import Pending, Readback
from ..wire import message
from ..wire.forms import FORMS
from ..wire.message import NonFinite
from ..wire.update import Update
from .fixed_size import FixedSize
from .layout import Layout, lay_out

Received: TypeAlias = Sequence[Update]
"""What one worker sent: what it compressed, and what it sent whole; what there is of both."""
Incoming: TypeAlias = Received | NonFinite
"""What one worker sent, or why it sent nothing."""


@dataclass(frozen=True)
class Outgoing:
    """What a worker sends for one bucket."""

    payload: Array
    """uint8, the messages one after the other, in the CPU's memory; or one of fixed size, on the device."""
    layout: Layout
    """What they are about."""
    tallies: Tallies
    """Counts of every parameter, in order."""
    refused: Pending[Sequence[int]] = list
    """For a message of fixed size, once `Context.readback` was fetched: completes the tallies; returns the
    ordinals of parameters that were not finite somewhere; nothing of the message means anything then."""


class Compressor:
    """Applies a method to buckets. It has no state: state is in the parts and the context.

    On a GPU, the number of times that the host waits does not depend on the number of parameters in a bucket:
    once to compress what is sent whole; twice with a threshold, for how much was selected, and for that
    itself; once more each for held-back parameters, for samples, and for the bits of `entropy`.
    """

    def __init__(self, config: CompressedMethod, ops: Ops | None = None, threads: int = 1) -> None:
        """Prepares a method for the device of gradients, residuals and totals, by default the CPU.

        So many threads may share the CPU's work where `ops` is not of the CPU; no result depends on it.
        """
        self.config = config
        self.ops = ops_for(torch.device("cpu"), threads) if ops is None else ops
        self.form, self.threads = config.message_form, max(threads, self.ops.threads)
        self.keeps_residuals = bool(config.needs_residual or config.decay)
        """Whether parameters that are not exempt have a residual."""
        self.corrects_momentum = bool(config.momentum_correction)
        """Whether they have a velocity."""

    def layout(
        self, names: Sequence[str], sizes: Sequence[int], whole: Sequence[int] = (), *, fixed: bool = False
    ) -> Layout:
        """What the messages of a bucket are about: of parameters with so many elements in the bucket.

        What is exempt is decided by the `whole` ones' numbers of elements, by default the same. With `fixed`,
        messages are of fixed size, and stay on the device.
        """
        pairs = zip(names, whole or sizes, strict=True)
        exempt = [is_exempt(self.config.exempt, name, size) for name, size in pairs]
        layout = lay_out(sizes, exempt)
        if not fixed:
            return layout
        block, bits = getattr(self.config, "block", 0), int(getattr(self.config, "value_bits", 0))
        return replace(layout, fixed=FixedSize(self.form, bits, block, layout.sent, layout.whole))

    def compress(self, parts: Sequence[Part], layout: Layout, context: Context) -> Outgoing:
        """Runs the method over a bucket's parameters and writes what is sent.

        Residuals and velocities are changed in place. If a parameter's residual + gradient is not finite
        somewhere, the payload says so: then nothing is sent, and residuals gain the finite elements.
        """
        ops = self.ops
        if self.config.decay != 1:
            kept = [part.residual for part in parts if part.residual is not None]
            if kept:
                torch._foreach_mul_(kept, self.config.decay)
        parts = parts if isinstance(parts, Parts) else Parts(parts)
        readback, tallies = context.readback or Readback(ops), Tallies.of(parts)
        updates = []
        if len(layout.whole):
            gradients = [parts[ordinal].gradient for ordinal in layout.whole.ordinals]
            values, broken = ops.gather(gradients, readback)
            updates.append((Update("f32", layout.whole, None, layout.whole.sizes, values), "auto"))
            ordinals = layout.whole.places
            tallies.sent[ordinals] = layout.whole.sizes
            tallies.paper_bits[ordinals] = FORMS["f32"].paper_bits * layout.whole.sizes
        output = None
        if len(layout.sent):
            active = self._active(parts, context)
            given = BucketInput(layout.sent, parts, active, context, ops, readback, tallies)
            output = self.config.run(given)
            positions = "auto" if output.update.words is None else self.config.position_codec
            updates.insert(0, (output.update, positions))

        def not_finite() -> list[int]:
            whole: list[int] = layout.whole.places[broken()].tolist() if len(layout.whole) else []
            return whole if output is None else [*output.refused(), *whole]

        if layout.fixed is not None:
            payload = layout.fixed.write([update for update, _ in updates], ops)
            return Outgoing(payload, layout, tallies, not_finite)
        arrays = readback.fetch_with([array for update, _ in updates for array in update.arrays()])
        if refused := not_finite():
            return self._refuse(refused, output, parts, layout)
        updates = [(update.with_arrays(arrays), codec) for update, codec in updates]
        payload = message.write_all(updates, self.config.symbol_codec, self.threads)
        return Outgoing(payload, layout, tallies)

    def _active(self, parts: Sequence[Part], context: Context) -> Flags:
        """Which parameters are not held back."""
        if not context.hold_back_zeros:
            return np.ones(len(parts), np.bool_)
        return self.ops.nonzero([part.gradient for part in parts])

    def _refuse(
        self,
        refused: Sequence[int],
        output: RuleOutput | None,
        parts: Parts,
        layout: Layout,
    ) -> Outgoing:
        """What is sent instead of updates, which go back to where they came from."""
        if output is not None:
            # A pass that sends parameters whole has quantized nothing where a sum was not finite.
            put_back(output.update, parts, self.ops, refused if output.update.words is None else ())
        readback, tallies = Readback(self.ops), Tallies.of(parts)
        kept = self.ops.squares([part.residual for part in parts], readback)
        payload = message.write_nonfinite(NonFinite(self.form, layout.bucket_elements, min(refused)))
        readback.fetch()
        tallies.residual_squares[:] = kept()
        return Outgoing(payload, layout, tallies)

    def read(self, payload: Array, layout: Layout) -> Incoming:
        """What another worker sent for a bucket of the same layout.

        Raises CorruptMessage where a message is damaged, of another method, or does not fit the layout.
        """
        if layout.fixed is not None:
            return layout.fixed.read(payload, self.ops)
        if message.is_refusal(payload):
            refusal = message.read_nonfinite(payload, layout.bucket_elements)
            self._check_form(refusal.form)
            return refusal
        updates = []
        for segments in (group for group in (layout.sent, layout.whole) if len(group)):
            length = message.length_of(payload)
            update = message.read(payload[:length], segments, self.threads)
            if segments is layout.sent:
                self._check_form(update.form)
            elif update.form != "f32" or update.k != layout.whole.n:
                raise CorruptMessage(f"{update.form} where parameters are sent whole")
            updates.append(update)
            payload = payload[length:]
        if payload.size:
            raise CorruptMessage(f"{payload.size} bytes follow the last message")
        return updates

    def read_all(self, payloads: Mapping[int, Array], layout: Layout) -> list[Incoming]:
        """What workers sent for a bucket of the same layout; errors of `read` name the worker."""
        read = []
        for rank, payload in payloads.items():
            try:
                read.append(self.read(payload, layout))
            except CorruptMessage as reason:
                raise CorruptMessage(f"the message of worker {rank}: {reason}") from None
        return read

    def _check_form(self, form: str) -> None:
        if form != self.form:
            raise CorruptMessage(f"it is of {form}, this worker sends {self.form}")

    def put_back(self, outgoing: Outgoing, parts: Sequence[Part]) -> None:
        """Adds what was taken out for a step that is left out to the residuals it came from."""
        sent = self.read(outgoing.payload, outgoing.layout)
        if not isinstance(sent, NonFinite):
            refused = outgoing.refused()
            for update in self._here(sent):
                put_back(update, parts, self.ops, refused)

    def _here(self, received: Received) -> Received:
        """Updates on the device of the gradients. Does not wait."""
        arrays = [array for update in received for array in update.arrays()]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return received
        placed = self.ops.place_all([host(array) for array in arrays])
        return [update.with_arrays(placed) for update in received]

    def total(self, incoming: Sequence[Incoming], divisor: int, total: Tensor) -> None:
        """Fills a bucket, float32 [bucket elements], with workers' updates, added in order, over a divisor.

        A refusal counts as zeros.
        """
        updates = [self._here(received) for received in incoming if not isinstance(received, NonFinite)]
        sum_all(updates, divisor, total, self.ops)

    def add(self, incoming: Received, total: Tensor) -> None:
        """Adds one worker's updates to a bucket, float32 [bucket elements]."""
        for update in self._here(incoming):
            add_update(update, total, self.ops)


def is_exempt(exempt: Exempt, name: str, elements: int) -> bool:
    """Whether a parameter is sent whole."""
    return elements < exempt.smaller_than or any(fnmatchcase(name, pattern) for pattern in exempt.names)


def compressor_for(config: CompressedMethod, device: torch.device, threads: int = 1) -> Compressor:
    """A method that runs on the device of the gradients; arguments and errors as for `ops_for`."""
    return Compressor(config, ops_for(device, threads), threads)


# What was sent is added on the device where it is; nothing here waits.


def add_update(update: Update, total: Tensor, ops: Ops) -> None:
    """Adds an update to a bucket, float32 [bucket elements], contiguous."""
    if not update.k:
        return
    segments = update.segments
    if update.words is None:
        source, rows = (update.values, update.tables), update.offsets.table
        ops.add_values(update.form, [source], update.block, rows, ops.array(total), segments.starts, 0)
        return
    starts = total.data_ptr() + 4 * segments.starts
    rows = np.stack((starts, starts, segments.sizes, segments.firsts), axis=1)
    beside = update.values if update.taus is not None else update.signed_floats(ops)
    ops.add_words(update.words, np.cumsum(update.counts), rows, update.taus, beside)


def put_back(update: Update, parts: Sequence[Part], ops: Ops, leaving_out: Collection[int] = ()) -> None:
    """Adds an update that was not sent back to the residuals it was taken from, if there are any.

    Of the parameters of some ordinals the update says nothing that is right: they are left out.
    """
    segments = update.segments
    end = int(segments.starts[-1] + segments.sizes[-1])
    total = torch.zeros(end, dtype=torch.float32, device=ops.device)
    if leaving_out:
        # A pass leaves their symbols undefined, which could lie behind the end of a table.
        for ordinal, place in zip(segments.ordinals, update.offsets.symbols, strict=True):
            if ordinal in leaving_out:
                ops.tensor(update.values[place]).zero_()
    add_update(update, total, ops)
    for ordinal, start, size in zip(segments.ordinals, segments.starts, segments.sizes, strict=True):
        residual = parts[ordinal].residual
        if residual is not None and ordinal not in leaving_out:
            residual += total[start : start + size]  # a zero too: it makes -0.0 to 0.0


def sum_all(workers: Sequence[Received], divisor: int, total: Tensor, ops: Ops) -> None:
    """Fills a bucket, float32 [bucket elements], with workers' updates, added in order, over a divisor."""
    updates = [update for received in workers for update in received]
    if ops.on_host and updates and all(update.words is not None for update in updates):
        _sum_sparse(updates, divisor, total, ops)
    elif updates and _fill_alone(updates, total.numel()):
        first, sources = updates[0], [(update.values, update.tables) for update in updates]
        rows, starts = first.offsets.table, first.segments.starts
        ops.add_values(first.form, sources, first.block, rows, ops.array(total), starts, divisor)
    else:
        total.zero_()
        for update in updates:
            add_update(update, total, ops)
        if divisor != 1:
            # A tensor, not a number: a GPU multiplies by a number's reciprocal, which rounds differently.
            total.div_(torch.full((), divisor, dtype=torch.float32, device=total.device))


def _sum_sparse(updates: Sequence[Update], divisor: int, total: Tensor, ops: Ops) -> None:
    """The same in one pass over the bucket: a block stays in the caches until all are added to it."""
    beside = [update.values if update.taus is not None else update.signed_floats(ops) for update in updates]
    ends = np.cumsum(np.concatenate([update.counts for update in updates]))
    shifts = np.concatenate([update.segments.shifts for update in updates])
    taus = [np.zeros(len(one.segments), np.float32) if one.taus is None else one.taus for one in updates]
    stops = np.cumsum([len(update.segments) for update in updates])
    words, values = joined([host(update.words) for update in updates]), joined(list(map(host, beside)))
    arguments = stops, ends, shifts, joined(taus), words, *amounts_of(values)
    sum_updates(*arguments, np.float32(divisor), total.numpy())


def _fill_alone(updates: Sequence[Update], elements: int) -> bool:
    """Whether each of some updates sends every element of a bucket, in blocks that all are cut alike."""
    alike = {(update.form, update.block, update.segments.sizes.tobytes()) for update in updates}
    return len(alike) == 1 and all(update.words is None and update.k == elements for update in updates)
