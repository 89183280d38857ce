"""The front door for local steps: an object in any training loop, for torchrun or whatever starts processes.

    local = LocalSteps(model, optimizer, every=4, compressor="strom(density(0.1, every=1)) | golomb_rice")
    for batch in data:
        loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step()  # exchanges in every 4th call

`exchange/local_rounds.py` has the algorithm; docs/how-to/local-steps.md says which settings are whose.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args
from weakref import WeakMethod, finalize

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .bucket.ledger import Step, Totals, Traffic
from .errors import NonFiniteWeight
from .exchange.addresses import places_of
from .exchange.agreement import described, flattened, require_agreement
from .exchange.averaging import Averaging
from .exchange.keys import require_long_enough
from .exchange.local_rounds import (
    Fragment,
    LocalRounds,
    LocalWorker,
    Merging,
    fragments_of,
)
from .exchange.mesh import connected, most_bytes_of
from .exchange.patterns import pattern_for, returning, self_contained
from .exchange.patterns.base import Setting
from .exchange.resizing import require_same_worker
from .exchange.runner import ProcessRunner
from .exchange.side_channel import buffer_fields
from .exchange.sites import Sites
from .exchange.tensors import (
    buffers_of,
    copy_into,
    description,
    load_buffers,
    local_tensor,
    require_sendable,
)
from .method import Method, NoCompression, PowerSGD, read_config
from .method.dense import DenseMethod
from .names import plain_names, unmatched_patterns

PatternName = Literal["allgather", "hierarchical", "parameter_server", "ring", "sharded"]
_PATTERNS = get_args(PatternName)
_VERSION = 3


@dataclass(frozen=True)
class Outer:
    """The optimizer of the agreed weights: SGD along the mean of the workers' differences.

    With the defaults, workers continue from the mean of their weights. DiLoCo has lr=0.7, momentum=0.9,
    nesterov=True.
    """

    lr: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False


class LocalSteps:
    """Lets workers take steps of their own, and exchanges what they have learned now and then.

    Every worker has a model and an optimizer; all begin with rank 0's weights. Wrap the model in nothing that
    synchronizes gradients. A model under `fully_shard` works, too: `group` then has the processes that hold
    the same shard.

    Attributes:
        method: what is sent.
        last_step: the ledger of the latest `step`; where nothing was merged in it, nothing was sent.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        every: int | None = None,
        every_examples: float | None = None,
        compressor: Method | Mapping[str, Any] | str = "none",
        exchange: Literal["differences", "weights"] = "differences",
        unsent: float | Literal["1/n"] = 0.0,
        outer: Outer | None = None,
        fragments: int | Sequence[Sequence[str]] = 1,
        delay: int = 0,
        blend: float | None = None,
        group: dist.ProcessGroup | None = None,
        pattern: PatternName = "allgather",
        back: Method | Mapping[str, Any] | str | None = None,
        sites: Sequence[Sequence[int]] | None = None,
        buffers: bool = True,
        key: bytes | None = None,
        threads: int | None = None,
    ) -> None:
        """Gives all workers rank 0's weights, and connects them; all must call this together.

        Args:
            model: any model.
            optimizer: that steps it; several, such as Muon and AdamW, in a list. Parameters that none steps
                are not exchanged after that; making one trainable, or adding one, needs a new LocalSteps.
            every: steps from one exchange to the next.
            every_examples: in place of `every`, a worker's examples from one exchange to the next, for
                workers of unequal speed. Each must come to equally many exchanges.
            compressor: a method, its dictionary, or its line such as
                `strom(density(0.1, every=1)) | golomb_rice`.
            exchange: differences to what workers went on from, with residuals; or weights (Oland-Raj), by a
                method that sends every element.
            unsent: how much of its residual (what it has not sent yet) a worker adds to its own weights after
                an exchange. "1/n" is the weight that it will have in the workers' mean.
            outer: the optimizer of the agreed weights, for differences.
            fragments: parts of the model that are exchanged one after the other, each every `every` steps
                (Streaming DiLoCo, arXiv 2501.18512): how many, of about equal size; or for each the names of
                its modules or parameters.
            delay: steps for which workers train on while a fragment is on its way.
            blend: with a delay, the part of its own weights that a worker keeps when the agreed ones arrive
                (the paper's alpha). By default it keeps the steps that it took meanwhile, whole, on top of
                the agreed weights.
            group: the workers' process group; by default all.
            pattern: who sends to whom (docs/synchronization.md).
            back: for sharded and parameter_server, the method of sums on their way back; by default the
                compressor.
            sites: for hierarchical, the ranks of each site; by default, the workers on one host form one.
            buffers: whether all workers take rank 0's buffers, at first and in each exchange.
            key: the same on all workers, 16 bytes or more: messages are encrypted then.
            threads: number of CPU threads for a pass; by default as many as torch uses.

        Raises:
            ValueError: an argument is not valid, alone or beside the others; the message names it.
            pydantic.ValidationError: likewise, of the compressor.
            TypeError: `optimizer` is none.
            WorkersDisagree: on every worker, where their arguments or models differ.
            PeerLost: a worker does not connect in time.
        """
        if not dist.is_initialized():
            raise ValueError("no process group: call torch.distributed.init_process_group first")
        require_long_enough(key)
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        parameters = _stepped(model, optimizers)
        self._model, self._optimizers, self._with_buffers = model, optimizers, buffers
        if dist.get_world_size(group) == 1:
            raise ValueError(
                "a group of one worker: there is nobody to exchange with; train without LocalSteps"
            )
        self.method = read_config(compressor)
        back_method = returning(self.method) if back is None else read_config(back)
        if problems := unmatched_patterns(self.method, list(parameters)):
            raise ValueError("; ".join(problems))
        merging = _merging(every, every_examples, exchange, unsent, delay, blend, dist.get_world_size(group))
        outer = Outer() if outer is None else outer
        _require_that_fit(self.method, merging, outer, pattern)
        self._by_examples = every_examples is not None
        self._weighted: bool | None = True if self._by_examples else None
        self._parameters = dict(reversed(parameters.items()))  # the last one first, as in DDP's buckets
        self._known = {id(each): each for each in self._parameters.values()}
        named = plain_names(model)
        self._others = {
            named[name]: local_tensor(each)
            for name, each in model.named_parameters()
            if id(each) not in self._known
        }
        own = [local_tensor(each) for each in self._parameters.values()]
        self._rank, device = dist.get_rank(group), own[0].device
        parts = _parts(fragments, list(self._parameters), [each.numel() for each in own])
        group = dist.group.WORLD if group is None else group
        assert group is not None
        described_as = {
            **flattened(self.method),
            "every": str(every_examples if every is None else every),
            "merging": str(merging),
            "outer": str(outer),
            "pattern": pattern,
            "fragments": str(parts),
            "buffers": str(buffers),
            **described(dict(zip(self._parameters, own, strict=True))),
            **{f"frozen {name!r}": description(each) for name, each in self._others.items()},
            **(buffer_fields(buffers_of(model)) if buffers else {}),
        }
        require_agreement(described_as, group)
        began = buffers_of(model) if buffers else {}
        require_sendable({f"buffer {name!r}": each for name, each in began.items()})
        values = sum(each.numel() for each in [*own, *began.values()])
        carrier = connected(group, most_bytes=dist.get_world_size(group) * most_bytes_of(values), key=key)
        runner = ProcessRunner(device, carrier, group)
        runner.broadcast([*own, *self._others.values(), *began.values()])
        method = self_contained(self.method) if exchange == "weights" else self.method
        placed = None
        if pattern == "hierarchical":
            placed = Sites.by_place(places_of(group)) if sites is None else Sites.of(sites, runner.workers)
        names = list(self._parameters)
        averagings = []
        for number, part in enumerate(parts):
            setting = Setting(
                [names[each] for each in part],
                [own[each].reshape(-1).float() for each in part],
                self._rank,
                runner.workers,
                torch.get_num_threads() if threads is None else threads,
            )
            side = pattern_for(pattern, method, back_method, setting, placed)
            averagings.append(Averaging(runner, [side], setting.names, f"round {number}", NonFiniteWeight))
        agreed = [each.to(torch.promote_types(each.dtype, torch.float32)).clone() for each in own]
        self._traffic = Traffic(runner.workers)
        self._worker = LocalWorker(list(self._parameters.values()), model if buffers else None)
        self._rounds = LocalRounds(
            [Fragment(each, part) for each, part in zip(averagings, parts, strict=True)],
            agreed,
            {name: each.clone() for name, each in began.items()},
            [self._worker],
            merging,
            torch.optim.SGD(agreed, lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov),
            self._traffic,
        )
        if exchange == "weights":
            note = WeakMethod(self._rounds.note_squares)
            handle = optimizers[0].register_step_pre_hook(lambda *_: (now := note()) and now(0))
            finalize(self, handle.remove)
        self.workers, self._elements = runner.workers, sum(each.numel() for each in own)
        self.last_step, self._before_last = Step(), Totals()

    def step(self, examples: float | None = None) -> bool:
        """Called after each step of the optimizer; exchanges what is due, and merges what has arrived.

        Args:
            examples: of this step's batch. With them, workers weigh by how many they learned from; all
                workers give them, or none does.

        Returns:
            Whether weights changed: something was merged.

        Raises:
            ValueError: `examples` are given now and not before, or the other way round; or are negative. Or
                a parameter is trained now and was not when this object was made.
            NonFiniteWeight: on every worker, if one's weights are not finite.
            WorkersDisagree: another worker exchanges another fragment, or in another round; or one's buffers
                have other shapes or dtypes now.
            PeerLost: on every worker, where one is gone, or has been silent for longer than the timeout of
                the process group allows.
            CorruptMessage: a message is damaged or does not fit.
        """
        self._require_all_exchanged()
        if self._weighted is None:
            self._weighted = examples is not None
        if self._weighted != (examples is not None):
            raise ValueError(f"examples = {examples}: give them in every step, or in none")
        if examples is not None and not 0 <= examples < float("inf"):
            raise ValueError(f"examples = {examples}: must be a number of at least 0")
        self._before_last = self.totals
        self.last_step = Step(steps=1, elements=self._elements)
        amount = 1.0 if examples is None or not self._by_examples else float(examples)
        return self._rounds.advance(self.last_step, amount, () if examples is None else (float(examples),))

    def _require_all_exchanged(self) -> None:
        for optimizer in self._optimizers:
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if id(parameter) in self._known or not parameter.requires_grad:
                    continue
                name = next((n for n, each in self._model.named_parameters() if each is parameter), None)
                if name is not None:
                    raise ValueError(
                        f"{name!r} is trained now, and was not when LocalSteps was made: when parameters are "
                        "unfrozen or added, call finish() and make a new LocalSteps, on all workers"
                    )
                self._known[id(parameter)] = parameter  # another model's

    def finish(self) -> None:
        """Exchanges what has moved since the last exchange, and waits for it: all have the agreed weights.

        All workers must call this after equally many exchanges. Raises as `step` does.
        """
        self._rounds.finish(self.last_step, weighted=bool(self._weighted), every_fragment=self._by_examples)

    @property
    def is_first_worker(self) -> bool:
        """Whether this worker logs for all: the first of its group, and of the first shard."""
        meshes = (
            getattr(parameter, "device_mesh", None) for parameter in self._parameters.values()
        )  # FSDP2's
        return self._rank == 0 and not any(mesh and any(mesh.get_coordinate()) for mesh in meshes)

    @property
    def totals(self) -> Totals:
        """The ledger of all steps so far. Buffers are not in it, as with DDP."""
        totals = Totals(**self._before_last.state_dict())
        totals.add(self.last_step)
        return totals

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Within it, the model has the weights and buffers that all agreed on last, to be evaluated or saved.

        They are the same on all workers. Do not train within it.
        """
        own = [local_tensor(each) for each in self._worker.parameters]
        kept = [each.clone() for each in own]
        buffers = {name: each.clone() for name, each in buffers_of(self._model).items()}
        copy_into(own, self._rounds.agreed)
        load_buffers(self._model, self._rounds.agreed_buffers)
        try:
            yield
        finally:
            copy_into(own, kept)
            load_buffers(self._model, buffers)

    def state_dict(self) -> dict[str, Any]:
        """Everything that this worker needs to continue, weights included: plain numbers and tensors.

        The optimizer has a state of its own. Waits for what is on its way, which is merged no sooner. All
        workers must save after the same step.
        """
        names, own = list(self._parameters), [local_tensor(each) for each in self._worker.parameters]
        return {
            "version": _VERSION,
            "rank": self._rank,
            "workers": self.workers,
            "agreed": dict(zip(names, self._rounds.agreed, strict=True)),
            "own": dict(zip(names, own, strict=True)),
            "others": dict(self._others),
            "buffers": buffers_of(self._model),
            "agreed_buffers": dict(self._rounds.agreed_buffers),
            "shared": self._rounds.shared_state(),
            "rounds": self._rounds.own_state(),
            "totals": self.totals.state_dict(),
            "traffic": self._traffic.state_dict(),
            "weighted": self._weighted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, the model's weights included.

        Raises:
            ValueError: the state has another version, or belongs to another worker, another number of
                workers, another model or other fragments.
        """
        if state.get("version") != _VERSION:
            raise ValueError(f"version {state.get('version')!r} of a state; this program reads {_VERSION}")
        require_same_worker(state, self._rank, self.workers)
        own = [local_tensor(each) for each in self._worker.parameters]
        fits = dict(zip(self._parameters, own, strict=True)) | self._others
        saved = {**state["own"], **state["others"]}
        shapes, found = ({name: each.shape for name, each in some.items()} for some in (fits, saved))
        if found != shapes or set(state["own"]) != set(self._parameters):
            raise ValueError("the state is of another model: its parameters have other names or shapes")
        self._rounds.load_shared(state["shared"])
        self._rounds.load_own(state["rounds"])
        copy_into(own, [state["own"][name] for name in self._parameters])
        copy_into(self._rounds.agreed, [state["agreed"][name] for name in self._parameters])
        copy_into(self._others.values(), [state["others"][name] for name in self._others])
        load_buffers(self._model, state["buffers"])
        self._rounds.agreed_buffers = {name: each.clone() for name, each in state["agreed_buffers"].items()}
        self._traffic.load_state_dict(state["traffic"])
        self._before_last, self.last_step = Totals.from_state_dict(state["totals"]), Step()
        self._weighted = state["weighted"]


def _stepped(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The parameters that are exchanged, by their names without wrappers."""
    if any(isinstance(each, DistributedDataParallel) for each in model.modules()):
        raise ValueError("model is in DistributedDataParallel, which synchronizes each step: give its module")
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise TypeError(f"optimizer is of {type(each).__name__}: must be one of torch.optim, or a list")
    names = plain_names(model)
    trained = {names[name]: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise ValueError("model has no parameter that requires a gradient: there is nothing to exchange")
    held = {id(each) for one in optimizers for group in one.param_groups for each in group["params"]}
    found: dict[str, Tensor] = {name: each for name, each in trained.items() if id(each) in held}
    if not found:
        raise ValueError("optimizer steps no parameter of the model: make it of model.parameters()")
    return found


def _merging(
    every: int | None,
    every_examples: float | None,
    exchange: str,
    unsent: float | str,
    delay: int,
    blend: float | None,
    workers: int,
) -> Merging:
    """The arguments as numbers; raises ValueError."""
    if (every is None) == (every_examples is None):
        raise ValueError("every and every_examples: give one of them")
    if every is not None and (not isinstance(every, int) or every < 1):
        raise ValueError(f"every = {every!r}: must be a whole number of steps, at least 1")
    if every_examples is not None and not 0 < every_examples < float("inf"):
        raise ValueError(f"every_examples = {every_examples!r}: must be a number above 0")
    if exchange not in ("differences", "weights"):
        raise ValueError(f"exchange = {exchange!r}: must be differences or weights")
    part = 1 / workers if unsent == "1/n" else unsent
    if not isinstance(part, int | float) or not 0 <= part <= 1:
        raise ValueError(f'unsent = {unsent!r}: must be from 0 to 1, or "1/n"')
    if not isinstance(delay, int) or delay < 0 or (every is not None and delay >= every):
        most = "" if every is None else f", and below every = {every}: it must arrive before it is sent again"
        raise ValueError(f"delay = {delay!r}: must be a whole number of steps, at least 0{most}")
    if blend is not None and not (delay and 0 <= blend < 1):
        raise ValueError(f"blend = {blend!r}: must be at least 0 and below 1, and needs a delay")
    return Merging(
        float(every or every_examples or 0),
        "weights" if exchange == "weights" else "difference",
        float(part),
        delay,
        blend,
    )


def _require_that_fit(method: Method, merging: Merging, outer: Outer, pattern: str) -> None:
    """Refuses what does not go together, with a ValueError."""
    if pattern not in _PATTERNS:
        raise ValueError(f"pattern = {pattern!r}: must be one of {', '.join(_PATTERNS)}")
    if isinstance(method, PowerSGD):
        raise ValueError("compressor = powersgd: its factors go through torch's own all-reduce, in DDP alone")
    if method.nonfinite == "skip":
        raise ValueError("compressor.nonfinite = skip: weights that are not finite cannot be left out")
    if not outer.lr > 0 or not 0 <= outer.momentum < 1 or (outer.nesterov and not outer.momentum):
        raise ValueError(f"outer = {outer}: lr above 0, momentum from 0 to below 1, nesterov with momentum")
    if method.own_momentum and (outer.momentum or pattern == "ring"):
        raise ValueError(
            f"compressor.momentum = {method.own_momentum}: works neither with a ring nor with outer.momentum"
        )
    if merging.unsent and pattern == "ring":
        raise ValueError(f"unsent = {merging.unsent:g} with a ring: what a hop leaves out is also others'")
    if merging.exchange == "weights":
        if not isinstance(method, DenseMethod | NoCompression) or method.reduction == "sum":
            raise ValueError(
                f"compressor = {method} with exchange = weights: weights need a mean, and a method that "
                "sends every element, such as linear or entropy"
            )
        if merging.unsent or outer != Outer():
            raise ValueError("unsent and outer: they need exchange = differences")


def _parts(
    fragments: int | Sequence[Sequence[str]], names: Sequence[str], sizes: Sequence[int]
) -> list[list[int]]:
    """The ordinals of each fragment's parameters; raises ValueError."""
    if isinstance(fragments, int):
        if not 1 <= fragments <= len(names):
            raise ValueError(f"fragments = {fragments}: must be from 1 to {len(names)}, the parameters")
        return fragments_of(sizes, fragments)
    parts: list[list[int]] = []
    taken: dict[int, int] = {}
    for number, modules in enumerate(fragments):
        part = []
        for module in [modules] if isinstance(modules, str) else modules:
            found = [i for i, name in enumerate(names) if name == module or name.startswith(f"{module}.")]
            if not found:
                raise ValueError(f"fragments[{number}]: {module!r} matches no parameter of the model")
            part += found
        for each in part:
            if taken.setdefault(each, number) != number:
                raise ValueError(f"fragments: {names[each]!r} is in {taken[each]} and in {number}")
        parts.append(sorted(set(part)))
    if left := [name for each, name in enumerate(names) if each not in taken]:
        raise ValueError(f"fragments: {left[0]!r} is in none of them, nor are {len(left) - 1} others")
    return parts
