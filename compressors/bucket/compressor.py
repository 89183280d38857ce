"""Error feedback: one worker's gradients of a bucket become a message, and all workers' messages a sum."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import CorruptMessage
from ..methods import CompressedMethod
from ..methods.base import BucketInput, Exempt, RuleOutput
from ..ops.array import Array, Flags, host
from ..ops.interface import Ops, Pending, Readback
from ..ops.parts import Part, Tallies
from ..wire import message
from ..wire.forms import FORMS
from ..wire.message import NonFinite
from ..wire.update import Update
from .feedback import Feedback
from .fixed_size import FixedSize
from .layout import Shard, lay_out
from .summing import Received, put_back, sum_all

Incoming: TypeAlias = Received | NonFinite
"""What one worker sent, or why it sent nothing."""
_NO_GRADIENT = torch.empty(0)


@dataclass(frozen=True, eq=False)
class Worker:
    """What is constant for one worker, whichever bucket it compresses."""

    ops: Ops
    """The passes on the device of its gradients, and the number of threads for them."""
    rank: int = 0
    workers: int = 1
    hold_back_zeros: bool = False
    """Send nothing for a parameter whose gradient is zero everywhere. DDP drops the result for parameters
    that no worker used, so what was sent for them would be lost."""
    model_sizes: Mapping[str, int] = field(default_factory=dict)
    """By name, elements of the parameters of which this worker has shards; they decide what is exempt."""
    readback: Readback | None = None
    """Given, messages are of fixed size, and stay on the device; results of passes are fetched by the owner
    of this. What is held back is sent as zeros."""


@dataclass(frozen=True)
class Outgoing:
    """What a worker sends for one bucket."""

    payload: Array
    """uint8, the messages one after the other, in the CPU's memory; or one of fixed size, on the device."""
    tallies: Tallies
    """Counts of every parameter, in order."""
    complete: Pending[Sequence[int]] = list
    """For a message of fixed size, once `Worker.readback` was fetched: completes the tallies; returns the
    ordinals of parameters that were not finite somewhere; nothing of the message means anything then."""


class Compressor:
    """Applies a method step after step to the same parameters, or slices of them, of one worker.

    On a GPU, the number of times that the host waits does not depend on the number of parameters in a bucket:
    once to compress what is sent whole; twice with a threshold, for how much was selected, and for that
    itself; once more each for held-back parameters, for samples, and for the bits of `entropy`.

    Attributes:
        method: what is applied.
        feedback: what is kept from one step to the next, perhaps with that of other parameters.
        shard: the elements that it compresses.
        layout: what stands where in a message.
    """

    def __init__(
        self,
        method: CompressedMethod,
        worker: Worker,
        shard: Shard,
        feedback: Feedback | None = None,
        *,
        number: int | None = None,
        messages: int = 1,
    ) -> None:
        """Prepares to compress a shard of the worker's parameters.

        `number` is that under which thresholds are remembered, where parameters are cut into shards. With
        messages of fixed size, so many may be written at once, each for as many of the slices.
        """
        self.method, self.worker, self.ops, self.shard = method, worker, worker.ops, shard
        self.feedback = Feedback(method) if feedback is None else feedback
        self._number, self._iteration = number, 0
        self._names, sizes = shard.names, [part.elements for part in shard.slices]
        self._sizes, known = sizes, worker.model_sizes
        wholes = [(part.name, known.get(part.name, part.whole)) for part in shard.slices]
        layout = lay_out(sizes, [is_exempt(method.exempt, *whole) for whole in wholes])
        if worker.readback is not None:
            block, bits = getattr(method, "block", 0), int(getattr(method, "value_bits", 0))
            fixed = FixedSize(method.message_form, bits, block, layout.sent, layout.whole, messages)
            layout = replace(layout, fixed=fixed)
        self.layout = layout
        self._taken: list[tuple[Outgoing, list[Part], list[list[Tensor]] | None]] = []
        """What was taken out of residuals since the last `commit`; with copies of what they were before."""

    def compress(
        self,
        gradients: Sequence[Tensor],
        iteration: int,
        rms: Mapping[str, float] | None = None,
        *,
        weights: Mapping[str, Tensor] | None = None,
        copies: bool = False,
        terms: Sequence[Tensor] | None = None,
    ) -> Outgoing:
        """What the worker sends of gradients, contiguous [numel] by slice; residuals change in place.

        If a parameter's residual + gradient is not finite somewhere, the payload says so: then nothing is
        sent, and residuals gain the finite elements.

        Args:
            gradients: no longer needed when this returns.
            iteration: steps before this one, or exchanges of local steps.
            rms: by name, root mean squares of the loss's gradients where `gradients` are something else.
            weights: by name, agreed weights, flat [numel] of the whole parameter, where there are any.
            copies: whether `put_back` restores copies of residuals and velocities: a step that overflows has
                gradients that are far off.
            terms: the worker's part of gradients that are sums; it is added to what `put_back` restores.
        """
        self._iteration = iteration
        parts = self._parts(gradients, rms, weights)
        copies = copies or terms is not None
        before = None
        if copies and (before := self._copies) is None:
            before = [[memory.clone() for memory in _memory_of(part)] for part in parts]
        self._add_to_copies(before, terms)
        with self.feedback.lock:
            outgoing = self._select_and_write(parts)
        if self.method.nonfinite == "skip":
            # Gradients are large, and one process may simulate many workers, so none is kept.
            parts = [Part(part.name, _NO_GRADIENT, part.residual, part.velocity) for part in parts]
            self._taken.append((outgoing, parts, before))
        return outgoing

    @property
    def _copies(self) -> list[list[Tensor]] | None:
        """What memories were before the first exchange of a step that has several; None without copies."""
        return self._taken[0][2] if self._taken else None

    def _add_to_copies(self, copies: list[list[Tensor]] | None, terms: Sequence[Tensor] | None) -> None:
        for kept, gradient in zip(copies or (), terms or (), strict=False):
            for residual in kept[:1]:
                _gain(residual, gradient)

    def _parts(
        self,
        gradients: Sequence[Tensor],
        rms: Mapping[str, float] | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> list[Part]:
        """Gradients together with what is kept for them."""
        method, feedback, parts = self.method, self.feedback, []
        whole = set(self.layout.whole.ordinals)
        for ordinal, (piece, gradient) in enumerate(zip(self.shard.slices, gradients, strict=True)):
            part = Part(piece.name, gradient, start=piece.start)
            if ordinal not in whole:
                if method.keeps_residuals:
                    part.residual = feedback.slice_of(feedback.residuals, piece, gradient)
                if method.momentum_correction:
                    part.velocity = feedback.slice_of(feedback.velocities, piece, gradient)
            if rms is not None:
                part.rms = rms[piece.name]
            if weights is not None:
                part.weights = weights[piece.name][piece.start : piece.stop]
            parts.append(part)
        return parts

    def _select_and_write(self, parts: list[Part]) -> Outgoing:
        """Runs the method over the parts, and writes what is sent."""
        ops, method, layout, feedback = self.ops, self.method, self.layout, self.feedback
        if method.decay != 1:
            kept = [part.residual for part in parts if part.residual is not None]
            if kept:
                torch._foreach_mul_(kept, method.decay)
        readback, tallies = self.worker.readback or Readback(ops), Tallies.of(self._names, self._sizes)
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
            memories = feedback.memories
            if self._number is not None:
                memories = feedback.shard_memories.setdefault(self._number, {})
            is_fixed, active = layout.fixed is not None, self._active(parts)
            stream = self.worker.rank + (2 * feedback.passes + bool(feedback.slices)) * self.worker.workers
            given = layout.sent, parts, active, self._iteration, memories, ops, readback, tallies
            output = method.run(BucketInput(*given, stream, is_fixed))
            positions = "auto" if output.update.words is None else method.position_codec
            updates.insert(0, (output.update, positions))

        def not_finite() -> list[int]:
            whole: list[int] = layout.whole.places[broken()].tolist() if len(layout.whole) else []
            return whole if output is None else [*output.complete(), *whole]

        if layout.fixed is not None:
            payload = layout.fixed.write([update for update, _ in updates], ops)
            return Outgoing(payload, tallies, not_finite)
        arrays = readback.fetch_with([array for update, _ in updates for array in update.arrays()])
        if refused := not_finite():
            return self._refuse(refused, output, parts)
        if output is not None and method.nonfinite == "refuse":
            method.on_sent(output.update, parts, ops)
        updates = [(update.with_arrays(arrays), codec) for update, codec in updates]
        return Outgoing(message.write_all(updates, method.symbol_codec, ops.threads), tallies)

    def _active(self, parts: Sequence[Part]) -> Flags:
        """Which parameters are not held back."""
        if not self.worker.hold_back_zeros:
            return np.ones(len(parts), np.bool_)
        return self.ops.nonzero([part.gradient for part in parts])

    def _refuse(self, refused: Sequence[int], output: RuleOutput | None, parts: Sequence[Part]) -> Outgoing:
        """What is sent instead of updates, which go back to where they came from."""
        if output is not None:
            # A pass that sends parameters whole has quantized nothing where a sum was not finite.
            put_back(output.update, parts, self.ops, refused if output.update.words is None else ())
        readback, tallies = Readback(self.ops), Tallies.of(self._names, self._sizes)
        kept = self.ops.squares([part.residual for part in parts], readback)
        payload = message.write_nonfinite(self.refusal(min(refused)))
        readback.fetch()
        tallies.residual_squares[:] = kept()
        return Outgoing(payload, tallies)

    def refusal(self, ordinal: int) -> NonFinite:
        """The message that there is no update, because of a parameter."""
        return NonFinite(self.method.message_form, self.layout.bucket_elements, ordinal)

    def keep(self, gradients: Sequence[Tensor]) -> None:
        """Adds gradients of which nothing is sent to the residuals."""
        for part in self._parts(gradients):
            if part.residual is not None:
                _gain(part.residual, part.gradient)
        self._add_to_copies(self._copies, gradients)

    def put_back(self, stepped: Set[str] = frozenset()) -> None:
        """Undoes what `compress` took out of the residuals since the last `commit`.

        This is only known with `nonfinite: skip`. What was sent of the parameters in `stepped` stays sent.
        """
        for outgoing, parts, before in reversed(self._taken):
            if before is None:
                unstepped = [replace(part, residual=None) if part.name in stepped else part for part in parts]
                sent = self.read(outgoing.payload)
                if not isinstance(sent, NonFinite):
                    refused = outgoing.complete()
                    for update in self._here(sent):
                        put_back(update, unstepped, self.ops, refused)
                continue
            for part, copies in zip(parts, before, strict=True):
                if part.name not in stepped:
                    for memory, copy in zip(_memory_of(part), copies, strict=True):
                        memory.copy_(copy)
        self._taken = []

    def commit(self) -> None:
        """Confirms that what was taken out has arrived, so there is nothing to put back."""
        taken, self._taken = self._taken, []
        for outgoing, parts, _ in taken if self.method.momentum_correction else ():
            sent = self.read(outgoing.payload)
            if not isinstance(sent, NonFinite) and len(self.layout.sent):
                self.method.on_sent(self._here(sent)[0], parts, self.ops)

    @property
    def nbytes(self) -> int:
        """Bytes of a message of fixed size; 0 where messages have others."""
        return 0 if self.layout.fixed is None else self.layout.fixed.nbytes

    def read(self, payload: Array) -> Incoming:
        """What another worker sent for the same parameters.

        Raises CorruptMessage where a message is damaged, of another method, or does not fit the layout.
        """
        layout = self.layout
        if layout.fixed is not None:
            return layout.fixed.read(payload, self.ops)
        if message.is_refusal(payload):
            refusal = message.read_nonfinite(payload, layout.bucket_elements)
            self._check_form(refusal.form)
            return refusal
        updates = []
        for segments in (group for group in (layout.sent, layout.whole) if len(group)):
            length = message.length_of(payload)
            update = message.read(payload[:length], segments, self.ops.threads)
            if segments is layout.sent:
                self._check_form(update.form)
            elif update.form != "f32" or update.k != layout.whole.n:
                raise CorruptMessage(f"{update.form} where parameters are sent whole")
            updates.append(update)
            payload = payload[length:]
        if payload.size:
            raise CorruptMessage(f"{payload.size} bytes follow the last message")
        return updates

    def read_all(self, payloads: Mapping[int, Array]) -> list[Incoming]:
        """What workers sent for the same parameters, by rank; errors of `read` name the worker."""
        read = []
        for rank, payload in payloads.items():
            try:
                read.append(self.read(payload))
            except CorruptMessage as reason:
                raise CorruptMessage(f"the message of worker {rank}: {reason}") from None
        return read

    def _check_form(self, form: str) -> None:
        if form != self.method.message_form:
            raise CorruptMessage(f"it is of {form}, this worker sends {self.method.message_form}")

    def _here(self, received: Received) -> Received:
        """Updates on the device of the gradients. Does not wait."""
        arrays = [array for update in received for array in update.arrays()]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return received
        placed = self.ops.place_all([host(array) for array in arrays])
        return [update.with_arrays(placed) for update in received]

    def total(self, incoming: Sequence[Incoming], divisor: int, total: Tensor | None = None) -> Tensor:
        """Workers' updates, added in order, over a divisor: float32 [bucket elements], in `total` if given.

        A refusal counts as zeros.
        """
        if total is None:
            total = torch.empty(self.shard.elements, dtype=torch.float32, device=self.ops.device)
        updates = [self._here(received) for received in incoming if not isinstance(received, NonFinite)]
        sum_all(updates, divisor, total, self.ops)
        return total


def _gain(residual: Tensor, gradient: Tensor) -> None:
    """Adds a gradient, except where the sum is not finite."""
    total = residual + gradient.to(residual.dtype)
    torch.where(torch.isfinite(total), total, residual, out=residual)


def _memory_of(part: Part) -> list[Tensor]:
    """Its residual and velocity, if it has them."""
    return [memory for memory in (part.residual, part.velocity) if memory is not None]


def is_exempt(exempt: Exempt, name: str, elements: int) -> bool:
    """Whether a parameter is sent whole."""
    return elements < exempt.smaller_than or any(fnmatchcase(name, pattern) for pattern in exempt.names)
