"""One bucket of gradients into messages, and messages back into a bucket."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from . import message
from .applying import add_to
from .codecs.base import Bytes
from .config.methods import CompressedMethod, Exempt
from .errors import CorruptMessage
from .forms import FORMS
from .message import NonFinite
from .parts import Layout, Part, PartTally, Unit, lay_out
from .rules import Context, Rule, build_rule, put_back
from .rules.base import squares
from .update import NO_TAU, Update


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
        staged = [self._stage(part) for part in parts]
        for part in staged:
            if part.residual is not None and self.config.decay != 1:
                part.residual.mul_(self.config.decay)
        messages: list[tuple[Bytes, Unit]] = []
        tallies: dict[int, PartTally] = {}
        refused: int | None = None
        for unit in layout.units:
            ran = self.rule.run(unit, staged, context)
            tallies |= dict(zip((place.ordinal for place in unit.places), ran.tallies, strict=True))
            if ran.refused is not None and refused is None:
                refused = ran.refused
            for update in ran.updates:
                # A parameter that is held back sends nothing, which has no chunks.
                codec = "auto" if self._codec == "chunked" and update.chunks is None else self._codec
                written = message.write(update, codec, self._symbols, context.threads)
                messages.append((written, unit))
        whole = self._whole(layout, parts, tallies)
        if isinstance(whole, int):
            refused = whole if refused is None else min(refused, whole)
        if refused is not None:
            self._put_back(messages, staged)
            for ordinal, part in enumerate(staged):
                tallies[ordinal] = PartTally(part.name, part.elements, 0, squares(part.residual))
        self._unstage(staged, parts)
        in_order = [
            tallies.get(ordinal, PartTally(part.name, part.elements, 0, 0.0))
            for ordinal, part in enumerate(parts)
        ]
        if refused is not None:
            return Outgoing(message.write_nonfinite(self.refusal(layout, refused)), [], in_order)
        pieces = [written for written, _ in messages]
        if whole is not None and not isinstance(whole, int):
            pieces.append(whole)
        payload = pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty(0, np.uint8)])
        return Outgoing(payload, messages, in_order)

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
    ) -> Bytes | int | None:
        """The exempt parameters' message, or the ordinal of one that is not finite, or None without any."""
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
        values = torch.cat(gradients).numpy()
        return message.write(Update("f32", layout.exempt.n, NO_TAU, None, values))

    def _put_back(self, messages: list[tuple[Bytes, Unit]], parts: Sequence[Part]) -> None:
        for written, unit in messages:
            update = message.read(written, unit.n)
            assert isinstance(update, Update)
            put_back(update, unit, parts)

    def put_back(self, outgoing: Outgoing, parts: Sequence[Part]) -> None:
        """Adds what was taken out for a step that is left out to the residuals it came from."""
        self._put_back(outgoing.messages, parts)

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
        incoming = [
            (self.check_update(message.read(each, unit.n), unit, layout), unit)
            for each, unit in zip(messages, self.units_of(len(messages), layout), strict=True)
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

    def add(self, incoming: list[tuple[Update, Unit]], total: Tensor) -> None:
        """Adds one worker's updates to a bucket, float32 [bucket elements]."""
        staged = total.cpu()  # total itself, mostly
        for update, unit in incoming:
            if update.words is not None or len(unit.places) == 1:
                base = unit.places[0].start if update.words is None else unit.base
                add_to(update, staged[base : base + unit.n])
                continue
            amounts = torch.from_numpy(update.floats())
            for place, elements in unit.slices(every=True):
                staged[place.start : place.start + place.elements] += amounts[elements]
        if staged is not total:
            total.copy_(staged)


def is_exempt(exempt: Exempt, name: str, elements: int) -> bool:
    """Whether a parameter is sent whole."""
    return elements < exempt.smaller_than or any(fnmatchcase(name, pattern) for pattern in exempt.names)


def of_worker(rank: int, reason: CorruptMessage) -> CorruptMessage:
    """The same reason, and whose message it is about."""
    return CorruptMessage(f"the message of worker {rank}: {reason}")
