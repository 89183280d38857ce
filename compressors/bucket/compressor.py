"""Turns one bucket of gradients into messages, and messages back into a bucket."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor

from ..config.methods import CompressedMethod, Exempt, Method
from ..ops.array import Bytes
from ..ops.cpu.ops import CpuOps
from ..ops.cpu.wire import find_messages
from ..ops.interface import Ops
from ..ops.returns import Returns, run
from ..rules.base import Context, Ran, Rule, Turn
from ..wire import message
from ..wire.codecs import codec_by_name
from ..wire.columns.updates import UpdateColumns
from ..wire.columns.writing import plan as plan_columns
from ..wire.forms import FORMS
from ..wire.message import NonFinite, Planned
from ..wire.update import NO_TAU, Update
from .adding import add_all, put_back, sum_all
from .crossing import to_device, to_host
from .incoming import Incoming, Received
from .layout import Layout, Part, PartTally, Unit, lay_out
from .reader import FEW, Reader


@dataclass(frozen=True)
class Outgoing:
    """What a worker sends for one bucket."""

    payload: Bytes
    """uint8, the messages one after the other; in the CPU's memory."""
    units: list[Unit]
    """What its messages that took something out of residuals are about; they come first."""
    tallies: list[PartTally]
    """Of every parameter, in order."""


class Compressor(Reader):
    """Applies a method to buckets. It has no state: state is in the parts and the context.

    On a GPU, the number of times that the host waits does not depend on the number of parameters in a bucket:
    twice to compress with a fixed threshold, for how much was selected, and for that itself; once more each
    for held-back parameters, for a sample that decides thresholds, and for the bits of `entropy`.
    """

    def __init__(self, config: CompressedMethod, ops: Ops | None = None, threads: int = 1) -> None:
        """Prepares.

        Args:
            config: the method.
            ops: of the device of gradients, residuals and totals; by default the CPU.
            threads: how many may share the CPU's work, if `ops` is not of the CPU. No result depends on it.

        Raises:
            ValueError: two codecs of other packages have one code.
        """
        self.config = config
        self.rule: Rule = config.build()
        self.ops = CpuOps(threads) if ops is None else ops
        super().__init__(self.rule.form, self.ops if isinstance(self.ops, CpuOps) else CpuOps(threads))
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
        return Compressor(method, self.ops, self.wire.threads)

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
        finite = ops.finite(wide, looks) if wide else list
        ran = run(looks, self.rule.run(turn))
        refused = [] if ran.refused is None else [ran.refused]
        if layout.exempt is not None:
            places = zip(layout.exempt.places, finite(), strict=True)
            refused += [place.ordinal for place, good in places if not good][:1]
        if refused:
            return self._refuse(min(refused), ran, parts, layout, returned)
        groups: list[Sequence[Update]] = [ran.updates]
        if layout.exempt is not None:
            values = ops.array(wide[0] if len(wide) == 1 else torch.cat(wide))
            groups.append([Update("f32", layout.exempt.n, NO_TAU, None, values)])
        if ops.on_host:
            returned.fetch()
        else:
            groups = to_host(groups, returned)
        payload = message.write_planned([self._plan(updates) for updates in groups], self.wire)
        return Outgoing(payload, ran.units, self._tallies(parts, whole, turn))

    def _plan(self, updates: Sequence[Update]) -> Planned:
        """How updates are going to be written."""
        if isinstance(updates, UpdateColumns) and len(updates) >= FEW:
            planned = plan_columns(updates, self._codec, self._symbols, self.wire.threads)
            if planned is not None:
                return planned
        each = list(updates)
        codecs = [self._codec_of(update) for update in each]
        return message.plan_all(each, codecs, self._symbols, self.wire)

    def _awake(self, parts: Sequence[Part], context: Context) -> set[int]:
        """Ordinals of the parameters that are not held back."""
        if not context.hold_back_zeros:
            return set(range(len(parts)))
        nonzero = self.ops.nonzero([part.gradient for part in parts])
        return {ordinal for ordinal, found in enumerate(nonzero) if found}

    def _codec_of(self, update: Update) -> str:
        # What is sent whole has no positions, and a parameter that is held back no chunks.
        whole = update.form == "f32" and update.words is None
        return "auto" if whole or (self._codec == "chunked" and update.chunks is None) else self._codec

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
        payload = message.write_nonfinite(self.refusal(layout, refused))
        returned.fetch()
        tallies = [
            PartTally(part.name, part.elements, 0, squares())
            for part, squares in zip(parts, kept, strict=True)
        ]
        return Outgoing(payload, [], tallies)

    def put_back(self, outgoing: Outgoing, parts: Sequence[Part]) -> None:
        """Adds what was taken out for a step that is left out to the residuals it came from."""
        units, payload = outgoing.units, outgoing.payload
        mine = find_messages(payload, len(units) + 1)[: len(units)]  # what was sent whole comes after them
        read = message.read_all(mine, [unit.n for unit in units], self.wire)
        updates = [update for update in read if isinstance(update, Update)]
        for update, unit in self._here(list(zip(updates, units, strict=True))):
            put_back(update, unit, parts, self.ops)

    def _here(self, received: Received) -> Received:
        """Updates on the device of the gradients."""
        return received if self.ops.on_host else to_device(received, self.ops)

    def refusal(self, layout: Layout, ordinal: int) -> NonFinite:
        """What is sent instead of updates if a parameter is not finite."""
        tau = np.float32(1) if FORMS[self.rule.form].has_tau else NO_TAU
        return NonFinite(self.rule.form, layout.bucket_elements, tau, ordinal)

    def total(self, incoming: Sequence[Incoming], divisor: int, total: Tensor) -> None:
        """Fills a bucket with the sum of workers' updates, added in their order, over a divisor.

        Args:
            incoming: of every worker; a refusal counts as zeros.
            divisor: how many workers a mean is taken over; 1 for the sum.
            total: float32 [bucket elements], whatever it holds.
        """
        updates = [self._here(each) for each in incoming if not isinstance(each, NonFinite)]
        sum_all(updates, divisor, total, self.ops)

    def add(self, incoming: Received, total: Tensor) -> None:
        """Adds one worker's updates to a bucket, float32 [bucket elements]."""
        add_all(self._here(incoming), total, self.ops)


def is_exempt(exempt: Exempt, name: str, elements: int) -> bool:
    """Whether a parameter is sent whole."""
    return elements < exempt.smaller_than or any(fnmatchcase(name, pattern) for pattern in exempt.names)
