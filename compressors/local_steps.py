"""Local steps as an object in any training loop, for torchrun or whatever starts processes.

    local = LocalSteps(model, optimizer, every=4, method="strom(density(0.1, every=1)) | golomb_rice")
    for batch in data:
        loss(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step()  # exchanges in every 4th call

`exchange/local_rounds.py` has the algorithm; docs/how-to/local-steps.md says which settings are whose.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakMethod, finalize

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from .bucket.compressor import Worker
from .bucket.ledger import Step, Totals, Traffic
from .exchange.addresses import places_of
from .exchange.agreement import described, description, flattened, require_agreement
from .exchange.keys import require_long_enough
from .exchange.local_rounds import Agreed, FormerModel, LocalRounds, fragments_of, on_host
from .exchange.lockstep import run
from .exchange.members.island import Island, require_place
from .exchange.members.resuming import fitting
from .exchange.members.rounds import MemberRounds, Members, Membership
from .exchange.mesh import connected, most_bytes_of
from .exchange.moments import MomentMeans
from .exchange.resizing import model_of, ranks_together, require_same_worker
from .exchange.side_channel import buffer_fields
from .exchange.sites import Sites
from .exchange.tensors import (
    buffers_of,
    copy_into,
    load_buffers,
    local_tensor,
    require_sendable,
)
from .exchange.worker_group import WorkerGroup
from .fields import problem_line
from .local_fields import LocalFields, Outer, local_refusals
from .methods import Method, read_config
from .names import plain_names, unmatched_patterns
from .ops import ops_for
from .pattern_names import PatternName

_VERSION = 6


class LocalSteps:
    """Lets workers take steps of their own, and exchanges what they have learned now and then.

    Every worker has a model and an optimizer; all begin with rank 0's weights. Wrap the model in nothing that
    synchronizes gradients. A model under `fully_shard` works, too: `group` then has the processes that hold
    the same shard. With `members`, workers come and go, and no process group is needed; a sharded model is
    one worker, whose processes call all methods together.

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
        method: Method | Mapping[str, Any] | str = "none",
        exchange: Literal["pseudo_gradients", "weights"] = "pseudo_gradients",
        unsent: float | Literal["1/n"] = 0.0,
        outer: Outer = Outer(),  # noqa: B008 - frozen
        fragments: int | Sequence[Sequence[str]] = 1,
        delay_steps: int = 0,
        blend: float | None = None,
        offload: bool = False,
        moments_every: Mapping[str, int] | None = None,
        group: dist.ProcessGroup | None = None,
        pattern: PatternName = "allgather",
        downlink: Method | Mapping[str, Any] | str | None = None,
        sites: Sequence[Sequence[int]] | None = None,
        buffers: bool = True,
        key: bytes | None = None,
        threads: int | None = None,
        members: Members | None = None,
    ) -> None:
        """Gives all workers rank 0's weights, and connects them; all must call this together.

        With `members`, nobody is waited for here: `join`, or the first `step`, connects this worker.

        Args:
            model: any model.
            optimizer: that steps it; several, such as Muon and AdamW, in a list. Parameters that none steps
                are not exchanged after that; making one trainable, or adding one, needs a new LocalSteps.
            every: steps from one exchange to the next.
            every_examples: in place of `every`, a worker's examples from one exchange to the next, for
                workers of unequal speed. Each must come to equally many exchanges.
            method: a method, its dictionary, or its line such as
                `strom(density(0.1, every=1)) | golomb_rice`.
            exchange: pseudo-gradients, or weights (Oland-Raj); of this and the next, `LocalFields` says more.
            unsent: the part of what it has not sent yet (its residual) that a worker's own weights keep after
                an exchange, from 0 to 1; "1/n": divided by the number of workers.
            outer: the optimizer of the agreed weights, for pseudo-gradients.
            fragments: parts of the model that are exchanged one after the other, each every `every` steps
                (Streaming DiLoCo, arXiv 2501.18512): how many, of about equal size; or for each the names of
                its modules or parameters.
            delay_steps: steps for which workers train on while a fragment is on its way.
            blend: with a delay, the part of its weights that a worker keeps; by default, all its steps since.
            offload: whether agreed weights, residuals and outer momentum lie in the host's memory.
            moments_every: by field of the optimizer's state, steps from one averaging over workers to the
                next: `{"exp_avg": 90, "exp_avg_sq": 180}` with `every=30` (DES-LOC, arXiv 2505.22549). By
                default, moments stay the worker's.
            group: the workers' process group; with members, that of the processes that hold one sharded
                model. By default all.
            pattern: who sends to whom.
            downlink: for sharded and parameter_server, the method of sums on their way back; by default
                `method`.
            sites: for hierarchical, the ranks of each site; by default, the workers on one host form one.
            buffers: whether all workers take rank 0's buffers, at first and in each exchange.
            key: the same on all workers, 16 bytes or more: messages are encrypted then.
            threads: number of CPU threads for a pass; by default as many as torch uses.
            members: where the coordinator is of workers that come and go; in place of `group`, if the model
                is not sharded, and of `key`.

        Raises:
            ValueError: an argument or a field of the method is not valid, alone or beside the others; the
                message names it.
            TypeError: `optimizer` is none.
            WorkersDisagree: on every worker, where their arguments or models differ.
            PeerLost: a worker does not connect in time.
        """
        if members is None and not dist.is_initialized():
            raise ValueError("no process group: call torch.distributed.init_process_group first")
        require_long_enough(key)
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        parameters = _stepped(model, self._optimizers)
        self._model, self._members = model, members
        self.workers = dist.get_world_size(group) if members is None else members.max_members
        if members is None and self.workers == 1:
            raise ValueError(
                "a group of one worker: there is nobody to exchange with; train without LocalSteps"
            )
        self.method = read_config(method)
        sums = None if downlink is None else read_config(downlink)
        named = plain_names(model)
        if problems := unmatched_patterns(self.method.name_patterns, list(named.values())):
            raise ValueError("; ".join(problems))
        self._fields = _read_fields(
            exchange=exchange,
            pattern=pattern,
            outer=outer,
            unsent=unsent,
            delay_steps=delay_steps,
            blend=blend,
            offload=offload,
        )
        names = list(reversed(parameters))  # the last one first, as in DDP's buckets
        self._parameters = {name: parameters[name] for name in names}
        self._known = {id(parameter): parameter for parameter in self._parameters.values()}
        self._frozen = {
            named[name]: parameter
            for name, parameter in model.named_parameters()
            if id(parameter) not in self._known
        }
        held, frozen = list[Any](self._parameters.values()), list[Any](self._frozen.values())
        buffered = model if buffers else None
        island = _island_of([*held, *frozen], buffered, members, group)
        tensors = [*held, *frozen] if island is None else island.stand_ins
        held, frozen = tensors[: len(held)], tensors[len(held) :]
        weights = list(map(local_tensor, held))
        parts = _parts(fragments, names, [weight.numel() for weight in weights])
        _require_interval(every, every_examples)
        _require_moments(moments_every or {}, every, members)
        for problem in local_refusals(self._fields, every or 0, len(parts), self.method, sums, name="method"):
            raise ValueError(problem)
        if members is not None:
            others = {"group": group if island is None else None, "downlink": downlink, "sites": sites}
            _require_plain(self._fields, len(parts), every, **others, key=key)
        self._by_examples = every_examples is not None
        self._weighted: bool | None = True if self._by_examples else None
        began = buffers_of(model) if buffers else {}
        described_as = {
            **flattened(self.method),
            **{name: str(value) for name, value in self._fields if name != "offload"},
            "every": str(every_examples if every is None else every),
            "fragments": str(parts),
            "buffers": str(buffers),
            "moments_every": str(dict(moments_every or {})),
            **described(dict(zip(names, weights, strict=True))),
            **{
                f"frozen {name!r}": description(local_tensor(tensor))
                for name, tensor in zip(self._frozen, frozen, strict=True)
            },
            **buffer_fields(began),
        }
        group = dist.group.WORLD if group is None else group
        if members is None or island is not None:
            assert group is not None
            require_agreement(described_as, group)
        require_sendable({f"buffer {name!r}": buffer for name, buffer in began.items()})
        worker_group, self._rank, placed = None, 0, None
        if members is None:
            most_bytes = self.workers * most_bytes_of([*weights, *began.values()])
            carrier = connected(group, most_bytes=most_bytes, key=key)
            worker_group, self._rank = WorkerGroup(carrier, weights[0].device, group), carrier.rank
            worker_group.broadcast([*weights, *self._others.values(), *began.values()])
            if pattern == "hierarchical":
                placed = Sites.by_place(places_of(group)) if sites is None else Sites.of(sites, self.workers)
        dtypes = [torch.promote_types(weight.dtype, torch.float32) for weight in weights]
        interval = float(every or every_examples or 0)

        def begin() -> tuple[Worker, Agreed]:
            weights = map(local_tensor, held)
            agreed = [
                on_host(weight, dtype) if offload else weight.reshape(-1).to(dtype, copy=True)
                for weight, dtype in zip(weights, dtypes, strict=True)
            ]
            worker = Worker(ops_for(agreed[0].device, threads), self._rank, self.workers)
            return worker, Agreed.begin(agreed, began, self._fields)

        self._rounds: LocalRounds | MemberRounds
        self._moments: MomentMeans | None = None
        if members is not None:
            self._rounds = MemberRounds(
                members, described_as, begin, names, parts, self.method, self._fields, interval,
                self._by_examples, held, frozen, buffered, self._optimizers, island,
            )  # fmt: skip
        else:
            assert worker_group is not None
            worker, state = begin()
            self._rounds = LocalRounds(
                worker_group, worker, names, parts, (self.method, sums), self._fields, interval, state,
                held, buffered, placed,
            )  # fmt: skip
            assert group is not None
            if moments_every:
                carrier = worker_group.carrier
                self._moments = MomentMeans(
                    moments_every, self._optimizers, self._parameters, worker, carrier, group
                )
        if exchange == "weights":
            assert isinstance(self._rounds, LocalRounds)
            note = WeakMethod(self._rounds.note_squares)
            handle = self._optimizers[0].register_step_pre_hook(lambda *_: (now := note()) and now())
            finalize(self, handle.remove)
        is_counted = island is None or island.rank == 0  # the leader sends for its island
        self._elements = sum(weight.numel() for weight in weights) * is_counted
        self.last_step, self._before_last = Step(), Totals()

    @property
    def _weights(self) -> list[Tensor]:
        """This worker's weights, by parameter; of a sharded one, this process's shard."""
        return [local_tensor(parameter) for parameter in self._parameters.values()]

    @property
    def _others(self) -> dict[str, Tensor]:
        """The parameters that are not exchanged, by name, likewise."""
        return {name: local_tensor(parameter) for name, parameter in self._frozen.items()}

    def step(self, examples: float | None = None) -> bool:
        """Called after each step of the optimizer; exchanges what is due, and merges what has arrived.

        Args:
            examples: of this step's batch. With them, workers weigh by how many they learned from; all
                workers give them, or none does. Of a sharded model with members, those of all its processes.

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
            MemberRefused: with members, the coordinator does not let this one in, or does not answer.
        """
        self._require_all_exchanged()
        if self._weighted is None:
            self._weighted = examples is not None
        if self._weighted != (examples is not None):
            raise ValueError(f"examples = {examples}: give them in every step, or in none")
        if self._weighted and self._members is not None and not self._by_examples:
            raise ValueError(
                f"examples = {examples} with members: they weigh by examples with every_examples alone"
            )
        if examples is not None and not 0 <= examples < float("inf"):
            raise ValueError(f"examples = {examples}: must be a number of at least 0")
        self._before_last = self.totals
        self.last_step = Step(steps=1, elements=self._elements)
        learned = None if examples is None else float(examples)
        amount = learned if learned is not None and self._by_examples else 1.0
        rounds, step = self._rounds, self.last_step
        if isinstance(rounds, MemberRounds):
            return rounds.advance(step, amount, learned)
        merged = run(rounds.advance(step, amount, learned))
        if self._moments is not None:
            run(self._moments.advance(rounds.steps, step, rounds.traffic))
        return merged

    def _require_all_exchanged(self) -> None:
        for optimizer in self._optimizers:
            for parameter in (held for group in optimizer.param_groups for held in group["params"]):
                if id(parameter) in self._known or not parameter.requires_grad:
                    continue
                name = next((n for n, other in self._model.named_parameters() if other is parameter), None)
                if name is not None:
                    raise ValueError(
                        f"{name!r} is trained now, and was not when LocalSteps was made: when parameters are "
                        "unfrozen or added, call finish() and make a new LocalSteps, on all workers"
                    )
                self._known[id(parameter)] = parameter  # another model's

    def finish(self) -> None:
        """Exchanges what has moved since the last exchange, and waits for it.

        All then have the agreed weights; with `unsent`, also that part of what they have not sent.
        All workers must call this after equally many exchanges. With members, this one then has the weights
        of the latest round, and leaves. Raises as `step` does.
        """
        if isinstance(self._rounds, MemberRounds):
            self._rounds.finish(self.last_step)
        else:
            weighted = bool(self._weighted)
            run(self._rounds.finish(self.last_step, weighted=weighted, every_fragment=self._by_examples))

    def join(self) -> None:
        """Waits until this worker is a member; its model then has the agreed weights.

        To be called before the first step, which does it otherwise, and loses what it has learned. Raises
        MemberRefused as `step` does, and ValueError without `members`.
        """
        self._of_members.join()

    def lease(self) -> int:
        """Waits for a shard of the examples to learn from in the steps until the next exchange.

        Shards are numbered from 0, without an end: `epoch, shard = divmod(local.lease(), shards)`. No other
        member has this one. If this member is lost before its next update is in a round, another one gets
        it. Lease one where an exchange is done, or some for one interval; what is learned from a shard after
        the next exchange is not protected so. Raises as `step` does, and ValueError without `members`.
        """
        return self._of_members.lease()

    def leave(self) -> bool:
        """Gives what this member has not sent to another one, and leaves: on a notice that it will be ended.

        Returns:
            Whether another member has taken it over within `Members.leave_within` seconds. Otherwise it stays
            in `state_dict`.
        """
        return self._of_members.leave()

    @property
    def membership(self) -> Membership:
        """What became of this member since its training began. Raises ValueError without `members`."""
        return self._of_members.membership

    @property
    def _of_members(self) -> MemberRounds:
        if isinstance(self._rounds, LocalRounds):
            raise ValueError("LocalSteps was made without members")
        return self._rounds

    @property
    def is_first_worker(self) -> bool:
        """Whether this worker logs for all: the first of its group, and of the first shard."""
        if not isinstance(self._rounds, LocalRounds):
            return self._rounds.is_first
        meshes = (
            getattr(parameter, "device_mesh", None) for parameter in self._parameters.values()
        )  # FSDP2's
        return self._rank == 0 and not any(mesh and any(mesh.get_coordinate()) for mesh in meshes)

    @property
    def totals(self) -> Totals:
        """The ledger of all steps so far. Buffers are not in it, as with DDP.

        With members, rank 0 of the processes that hold a sharded model counts for all of them.
        """
        return self._before_last.plus(self.last_step)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Within it, the model has the weights and buffers that all agreed on last, to be evaluated or saved.

        They are the same on all workers. Do not train within it.
        """
        weights = self._weights
        kept = [on_host(weight) if self._fields.offload else weight.clone() for weight in weights]
        buffers = {name: buffer.clone() for name, buffer in buffers_of(self._model).items()}
        self._rounds.load_agreed(self._model)
        try:
            yield
        finally:
            copy_into(weights, kept)
            load_buffers(self._model, buffers)

    def state_dict(self) -> dict[str, Any]:
        """Everything that this worker needs to continue, weights included: plain numbers and tensors.

        The optimizer has a state of its own. Waits for what is on its way, which is merged no sooner. All
        workers must save after the same step. It may be loaded with another `offload`.
        """
        rounds = self._rounds.worker_state()  # a member merges what is on its way
        agreed = self._rounds.agreed.weights  # those of an island are its leader's
        return {
            "version": _VERSION,
            "rank": self._rank,
            "workers": self.workers,
            "agreed": dict(zip(self._parameters, agreed, strict=bool(agreed))),
            "own": dict(zip(self._parameters, self._weights, strict=True)),
            "others": dict(self._others),
            "buffers": buffers_of(self._model),
            "agreed_buffers": dict(self._rounds.agreed.buffers),
            "shared": self._rounds.shared_state(),
            "rounds": rounds,
            "totals": self.totals.state_dict(),
            "traffic": self._rounds.traffic.state_dict(),
            "weighted": self._weighted,
        }

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, reshard: bool = False
    ) -> None:
        """Restores what `state_dict` returned, the model's weights included.

        With `reshard`, any number of workers go on from the states of another number. What former workers
        have learned since the last exchange, and what they have not sent, is divided among the workers now,
        so that its mean stays what it was. A worker that joins begins with the agreed weights. Frozen
        parameters and buffers are those of one former worker. Links are counted anew.

        A fixed group takes over members' states with `reshard`, too; those of an older round than the latest
        are left out. A member goes on from the state of any worker of a fixed group; what that had not sent
        counts for the first member that comes with it.

        Args:
            state: this worker's; with `reshard`, those of all workers that saved them, in any order.
            reshard: whether they may be another number of workers than now.

        Raises:
            ValueError: the state has another version, or belongs to another worker, another number of
                workers, another model or other fragments; or with `reshard`, a worker's state is missing.
        """
        if reshard and self._members is not None:
            raise ValueError("reshard = True with members: load this worker's own state")
        if not reshard and not isinstance(state, Mapping):
            raise ValueError(f"{len(state)} states: without reshard=True, load this worker's own")
        states: Sequence[Mapping[str, Any]] = [state] if isinstance(state, Mapping) else state
        weights = dict(zip(self._parameters, self._weights, strict=True))
        shapes = [{name: tensor.shape for name, tensor in kind.items()} for kind in (weights, self._others)]
        for saved in states:
            if saved.get("version") != _VERSION:
                raise ValueError(
                    f"version {saved.get('version')!r} of a state; this program reads {_VERSION}"
                )
            require_place(saved["rounds"].get("island"), getattr(self._rounds, "place", None))
            if shapes != [
                {name: tensor.shape for name, tensor in saved[kind].items()} for kind in ("own", "others")
            ]:
                raise ValueError("the state is of another model: its parameters have other names or shapes")
        states = fitting(states, None if self._members is None else self.workers, reshard=reshard)
        if reshard:
            former = ranks_together(
                [{str(saved["rank"]): saved} for saved in states], [saved["workers"] for saved in states]
            )
            own, shared = former[model_of(self._rank, len(former))], former[0]
        else:
            hint = "load the states of all of them with reshard=True"
            require_same_worker(states[0], self._rank, self.workers, hint)
            former, own, shared = [], states[0], states[0]
        rounds = self._rounds
        if not isinstance(rounds, LocalRounds) and rounds.has_joined:
            raise ValueError("this member has joined already: load its state before the first step")
        rounds.load_shared(shared["shared"])
        agreed = dict(zip(self._parameters, rounds.agreed.weights, strict=bool(rounds.agreed.weights)))
        if not reshard:
            rounds.load_worker_state(own["rounds"])
        for kind, tensors in (("own", weights), ("agreed", agreed), ("others", self._others)):
            copy_into(tensors.values(), [own[kind][name] for name in tensors])
        load_buffers(self._model, own["buffers"])
        rounds.agreed.buffers = {name: buffer.clone() for name, buffer in own["agreed_buffers"].items()}
        if reshard:
            assert isinstance(rounds, LocalRounds)
            models = [
                FormerModel([saved["own"][name] for name in weights], saved["rounds"].get("moved"))
                for saved in former
            ]
            rounds.reshard([saved["rounds"] for saved in former], models)
            rounds.progress = float(shared["rounds"]["progress"])  # what its fragments were sent at
        fresh = Traffic(self.workers).state_dict()
        rounds.traffic.load_state_dict(fresh if reshard else own["traffic"] or fresh)
        self._before_last, self.last_step = Totals.from_state_dict(own["totals"]), Step()
        self._weighted = shared["weighted"]


def _stepped(model: nn.Module, optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """The parameters that are exchanged, by their names without wrappers."""
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise ValueError("model is in DistributedDataParallel, which synchronizes each step: give its module")
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizer is of {type(optimizer).__name__}: must be one of torch.optim, or a list"
            )
    names = plain_names(model)
    trained = {
        names[name]: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not trained:
        raise ValueError("model has no parameter that requires a gradient: there is nothing to exchange")
    stepped = {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parameters: dict[str, Tensor] = {
        name: parameter for name, parameter in trained.items() if id(parameter) in stepped
    }
    if not parameters:
        raise ValueError("optimizer steps no parameter of the model: make it of model.parameters()")
    return parameters


def _read_fields(**fields: Any) -> LocalFields:
    """Raises ValueError, in a line, where one is not valid."""
    try:
        return LocalFields(**fields)
    except ValidationError as error:
        raise ValueError(problem_line(error)) from None


def _require_plain(fields: LocalFields, fragments: int, every: int | None, **others: object) -> None:
    """Raises ValueError for what workers that come and go cannot have."""
    plain = {"pattern": "allgather", "exchange": "pseudo_gradients"}
    for name, value in plain.items():
        if getattr(fields, name) != value:
            raise ValueError(f"{name} = {getattr(fields, name)} with members: must be {value}")
    if every is not None and every % fragments:
        raise ValueError(f"every = {every} with members: must be a multiple of fragments = {fragments}")
    if every is not None and fields.delay_steps >= every // fragments:
        raise ValueError(
            f"delay_steps = {fields.delay_steps} with members: must be below every / fragments, that is "
            f"{every // fragments}"
        )
    for name in (name for name, value in others.items() if value is not None):
        raise ValueError(f"{name} with members: leave it out; Members says who they are, and has the key")


def _island_of(
    parameters: Sequence[Tensor],
    model: nn.Module | None,
    members: Members | None,
    group: dist.ProcessGroup | None,
) -> Island | None:
    """The processes that hold a sharded model, which is to be a member; None if it is not."""
    if members is None or not any(hasattr(parameter, "device_mesh") for parameter in parameters):
        return None
    if members.moments:
        raise ValueError("moments = True with a sharded model: leave it out; a new member begins without")
    group = dist.group.WORLD if group is None else group
    assert group is not None
    return Island(parameters, model, group)


def _require_interval(every: int | None, every_examples: float | None) -> None:
    if (every is None) == (every_examples is None):
        raise ValueError("every and every_examples: give one of them")
    if every is not None and (not isinstance(every, int) or every < 1):
        raise ValueError(f"every = {every!r}: must be a whole number of steps, at least 1")
    if every_examples is not None and not 0 < every_examples < float("inf"):
        raise ValueError(f"every_examples = {every_examples!r}: must be a number above 0")


def _require_moments(moments_every: Mapping[str, int], every: int | None, members: Members | None) -> None:
    if moments_every and (members is not None or every is None):
        beside = "every_examples" if members is None else "members"
        raise ValueError(f"moments_every with {beside}: workers must take steps together; leave it out")
    for field, steps in moments_every.items():
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(
                f"moments_every = {dict(moments_every)}: {field} needs a whole number of steps, at least 1"
            )


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
            matching = [i for i, name in enumerate(names) if name == module or name.startswith(f"{module}.")]
            if not matching:
                raise ValueError(f"fragments[{number}]: {module!r} matches no parameter of the model")
            part += matching
        for ordinal in part:
            if taken.setdefault(ordinal, number) != number:
                raise ValueError(f"fragments: {names[ordinal]!r} is in {taken[ordinal]} and in {number}")
        parts.append(sorted(set(part)))
    if left := [name for ordinal, name in enumerate(names) if ordinal not in taken]:
        raise ValueError(f"fragments: {left[0]!r} is in none of them, nor are {len(left) - 1} others")
    return parts
