"""One bucket of gradients into messages, and messages back into a bucket."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..config.methods import CompressedMethod, Exempt
from ..errors import CorruptMessage
from ..rules import Context, Ran, Rule, build_rule, put_back
from ..rules.base import squares
from ..wire import message
from ..wire.codecs.base import Bytes
from ..wire.forms import FORMS
from ..wire.message import NonFinite
from ..wire.update import NO_TAU, Update
from .adding import add_to, sum_sparse
from .layout import Layout, Part, PartTally, Unit, lay_out


@dataclass(frozen=True)
class Outgoing:
    """What a worker sends for one bucket."""

    payload: Bytes
    """uint8, one message behind the other; of a device compressor a tensor there."""
    messages: list[tuple[Bytes, Unit]]
    """Those that took something out of residuals, with what they are about."""
    tallies: list[PartTally]
    """Of every parameter, in order."""


Incoming = list[tuple[Update, Unit]] | NonFinite
"""What a worker received from one of the others."""


class Compressor:
    """A method at work on buckets. It keeps nothing: state stands in the parts and the context.

    This one works in the CPU's memory, and copies what lies elsewhere there and back;
    `on_device.DeviceCompressor` works where the gradients are.
    """

    def __init__(self, config: CompressedMethod) -> None:
        self.config = config
        self.rule: Rule = build_rule(config)
        self._codec = getattr(config, "codec", "auto")
        self._symbols = getattr(config, "symbols", "auto")
        self.keeps_residuals = bool(self.rule.needs_residual or config.decay)
        """Whether parameters that are not exempt have a residual."""
        self.corrects_momentum = bool(getattr(config, "momentum", 0))
        """Whether they have a velocity."""

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
            The payload; or, where a parameter's residual + gradient is not finite somewhere, a payload that
            says so. Then nothing is sent, and residuals gain what is finite.
        """
        here = all(part.gradient.is_cpu for part in parts)
        staged = parts if here else [self._stage(part) for part in parts]
        if self.config.decay != 1:
            for part in staged:
                if part.residual is not None:
                    part.residual.mul_(self.config.decay)
        rans = [self.rule.run(unit, staged, context) for unit in layout.units]
        tallies = {
            place.ordinal: tally
            for unit, ran in zip(layout.units, rans, strict=True)
            for place, tally in zip(unit.places, ran.tallies, strict=True)
        }
        whole = self._whole(layout, parts, tallies)
        broken = [ran.refused for ran in rans if ran.refused is not None]
        if isinstance(whole, int):
            broken.append(whole)
        if broken:
            return self._send_refusal(min(broken), rans, staged, parts, layout)
        self._unstage(staged, parts)
        updates = [
            (update, unit) for unit, ran in zip(layout.units, rans, strict=True) for update in ran.updates
        ]
        written = message.write_all(
            [update for update, _ in updates] + ([whole] if isinstance(whole, Update) else []),
            [self._codec_of(update) for update, _ in updates] + ["auto"] * isinstance(whole, Update),
            self._symbols,
            context.threads,
        )
        messages = [(each, unit) for each, (_, unit) in zip(written.messages, updates, strict=False)]
        return Outgoing(written.payload, messages, self._in_order(tallies, parts))

    def _codec_of(self, update: Update) -> str:
        # A parameter that is held back sends nothing, which has no chunks.
        return "auto" if self._codec == "chunked" and update.chunks is None else self._codec

    def _in_order(self, tallies: Mapping[int, PartTally], parts: Sequence[Part]) -> list[PartTally]:
        return [
            tallies.get(ordinal) or PartTally(part.name, part.elements, 0, 0.0)
            for ordinal, part in enumerate(parts)
        ]

    def _send_refusal(
        self, refused: int, rans: Sequence[Ran], staged: Sequence[Part], parts: Sequence[Part], layout: Layout
    ) -> Outgoing:
        """What is sent in place of updates, which go back to where they came from."""
        for unit, ran in zip(layout.units, rans, strict=True):
            for update in ran.updates:
                put_back(update, unit, staged)
        tallies = [PartTally(part.name, part.elements, 0, squares(part.residual)) for part in staged]
        self._unstage(staged, parts)
        return Outgoing(message.write_nonfinite(self.refusal(layout, refused)), [], tallies)

    def _stage(self, part: Part) -> Part:
        """A part in the CPU's memory."""
        if part.gradient.device.type == "cpu":
            return part
        residual = None if part.residual is None else part.residual.cpu()
        velocity = None if part.velocity is None else part.velocity.cpu()
        return Part(part.name, part.gradient.cpu(), residual, velocity)

    def _unstage(self, staged: Sequence[Part], parts: Sequence[Part]) -> None:
        for copy, part in zip(staged, parts, strict=True):
            if copy is not part:
                for changed, own in ((copy.residual, part.residual), (copy.velocity, part.velocity)):
                    if own is not None and changed is not None:
                        own.copy_(changed)

    def _whole(
        self, layout: Layout, parts: Sequence[Part], tallies: dict[int, PartTally]
    ) -> Update | int | None:
        """The exempt parameters' update, or the ordinal of one that is not finite, or None without any."""
        if layout.exempt is None:
            return None
        gradients = []
        for place in layout.exempt.places:
            part = parts[place.ordinal]
            gradient = part.gradient.float().cpu()
            if not bool(torch.isfinite(gradient).all()):
                return place.ordinal
            gradients.append(gradient)
            bits = FORMS["f32"].paper_bits * place.elements
            tallies[place.ordinal] = PartTally(part.name, place.elements, place.elements, 0.0, None, bits)
        return Update("f32", layout.exempt.n, NO_TAU, None, torch.cat(gradients).numpy())

    def put_back(self, outgoing: Outgoing, parts: Sequence[Part]) -> None:
        """Adds what was taken out for a step that is left out to the residuals it came from."""
        units = [unit for _, unit in outgoing.messages]
        updates = message.read_all([written for written, _ in outgoing.messages], [unit.n for unit in units])
        for update, unit in zip(updates, units, strict=True):
            assert isinstance(update, Update)
            put_back(update, unit, parts)

    def refusal(self, layout: Layout, ordinal: int) -> NonFinite:
        """What is sent in place of updates where a parameter is not finite."""
        tau = np.float32(1) if FORMS[self.rule.form].has_tau else NO_TAU
        return NonFinite(self.rule.form, layout.bucket_elements, tau, ordinal)

    def read_all(self, padded: Tensor, sizes: Sequence[int], layout: Layout) -> list[Incoming]:
        """What every worker sent for a bucket of the same layout.

        Args:
            padded: uint8 [workers, longest], each worker's payload and padding.
            sizes: bytes of the payloads.
            layout: of the bucket.

        Raises:
            CorruptMessage: see `read`; it names the worker.
        """
        rows = padded.cpu().numpy()
        incoming = []
        for rank, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            try:
                incoming.append(self.read(row[:size], layout))
            except CorruptMessage as reason:
                raise of_worker(rank, reason) from None
        return incoming

    def read(self, payload: Bytes, layout: Layout) -> Incoming:
        """What another worker sent for a bucket of the same layout.

        Raises:
            CorruptMessage: a message is damaged, of another method, or does not fit the layout.
        """
        messages = message.split(payload, self.most_messages(layout))
        if len(messages) == 1 and message.is_refusal(messages[0]):
            return self.check_refusal(message.read(messages[0], layout.bucket_elements))
        units = self.units_of(len(messages), layout)
        updates = message.read_all(messages, [unit.n for unit in units])
        incoming = [
            (self.check_update(update, unit, layout), unit)
            for update, unit in zip(updates, units, strict=True)
        ]
        self.check_taus([update for update, unit in incoming if unit is not layout.exempt])
        return incoming

    def most_messages(self, layout: Layout) -> int:
        """How many messages a payload may have."""
        return max(sum(len(unit.places) for unit in layout.units), 1) + 1

    def units_of(self, messages: int, layout: Layout) -> list[Unit]:
        """What each of a payload's messages must be about, in their order.

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

    def check_refusal(self, refusal: Update | NonFinite) -> NonFinite:
        """The refusal that a payload's only message says it is; raises CorruptMessage."""
        assert isinstance(refusal, NonFinite)
        self._check_form(refusal.form)
        return refusal

    def check_update(self, update: Update | NonFinite, unit: Unit, layout: Layout) -> Update:
        """The update that a message about a unit must hold; raises CorruptMessage."""
        if isinstance(update, NonFinite):
            raise CorruptMessage("a refusal among updates")
        if unit is not layout.exempt:
            self._check_form(update.form)
        elif update.form != "f32" or update.words is not None:
            raise CorruptMessage(f"{update.form} where parameters are sent whole")
        return update

    def check_taus(self, updates: Sequence[Update]) -> None:
        """Whether messages of one bucket stand in their order; raises CorruptMessage."""
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
        updates = [each for each in incoming if not isinstance(each, NonFinite)]
        if total.is_cpu and all(update.words is not None for each in updates for update, _ in each):
            sum_sparse([pair for each in updates for pair in each], divisor, total.numpy())
            return
        total.zero_()
        for each in updates:
            self.add(each, total)
        if divisor != 1:
            # A tensor and no number: a GPU multiplies by a number's reciprocal, which rounds otherwise.
            total.div_(torch.full((), divisor, dtype=torch.float32, device=total.device))

    def add(self, incoming: list[tuple[Update, Unit]], total: Tensor) -> None:
        """Adds one worker's updates to a bucket, float32 [bucket elements]."""
        staged = total.cpu()  # total itself, mostly
        dense = staged.numpy()
        for update, unit in incoming:
            if update.words is not None or len(unit.places) == 1:
                base = unit.places[0].start if update.words is None else unit.base
                add_to(update, dense[base : base + unit.n])
                continue
            amounts = update.floats()
            for place, elements in unit.slices(every=True):
                dense[place.start : place.start + place.elements] += amounts[elements]
        if staged is not total:
            total.copy_(staged)


def is_exempt(exempt: Exempt, name: str, elements: int) -> bool:
    """Whether a parameter is sent whole."""
    return elements < exempt.smaller_than or any(fnmatchcase(name, pattern) for pattern in exempt.names)


def of_worker(rank: int, reason: CorruptMessage) -> CorruptMessage:
    """The same reason, and whose message it is about."""
    return CorruptMessage(f"the message of worker {rank}: {reason}")
