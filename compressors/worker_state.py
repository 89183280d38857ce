"""What one worker keeps and counts, for DDP and FSDP2.

Before their first exchange, workers check that all of them have the same settings (`exchange/agreement.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from .bucket.bucket import Bucket
from .bucket.feedback import Feedback
from .bucket.ledger import Step, Totals, Traffic
from .errors import CompressionError, PeerLost
from .exchange.addresses import backends_of
from .exchange.agreement import flattened, require_agreement
from .exchange.patterns import IN_MESSAGES, require_fitting
from .exchange.patterns.base import as_messages
from .exchange.resizing import model_of, ranks_together, require_same_worker, resharded
from .methods import CompressedMethod, Method, NoCompression
from .names import unmatched_patterns
from .observe import GradientStatistics, gradient_statistics
from .optimizer_steps import StepTracker
from .reducers.all_reduce import AllReduce, BroughtExchange
from .reducers.base import Options, Reducer
from .reducers.collective import CollectiveReducer
from .reducers.compressed import CompressedReducer

_STATE_VERSION = 11
"""From 7 on, residuals have the shapes of their parameters: before, the order of their elements depended on
a memory format that was not saved; from 8 on, totals and links are this worker's; from 9 on, what is kept of
sums is named downlink; from 10 on, it has the strides of parameters; from 11 on, links are a row."""


class StepState:
    """What a worker counts from step to step, and its first failure.

    Attributes: `method`, `last_step` and `failure`, as of `WorkerState`.
    """

    def __init__(self, method: Method, optimized: Callable[[], Mapping[str, Tensor]]) -> None:
        """Begins with nothing counted; `optimized` returns parameters by name as optimizers have them."""
        self.method, self.last_step, self._before_last = method, Step(), Totals()
        self.failure: CompressionError | None = None
        self._optimized, self._steps = optimized, StepTracker(self, optimized)

    @property
    def totals(self) -> Totals:
        """What this worker sent and received in all steps so far."""
        return self._before_last.plus(self.last_step)

    def _begin_step(self) -> None:
        """Begins a step: what was counted before is complete."""
        self._steps.begin_step()
        self._before_last, self.last_step = self.totals, Step(steps=1)

    def _fail(self, problem: CompressionError) -> CompressionError:
        """Records the first failure, so that a training loop can raise it instead of torch's RuntimeError."""
        self.failure = self.failure or problem
        return problem


class WorkerState(StepState):
    """The state of compression on one worker.

    Attributes:
        method: the method.
        feedback: residuals, velocities and thresholds, by parameter name.
        last_step: what this worker sent and received in the latest step, complete once `backward()` returned.
            A step ends when an optimizer steps one of the parameters, or when gradients are cleared; until
            then, it counts all passes that are exchanged. With `nonfinite: skip`, check `last_step.skipped`;
            if it is set, skip the optimizer's step, and clear the gradients: otherwise the next pass belongs
            to the skipped step.
        statistics: by parameter name, of the last step observed (see `observe_next_step`).
        failure: the error that made an exchange of the latest backward pass fail.
        gradient_scale: a factor for gradients, applied before anything else.
    """

    _accumulating: str
    """Context manager or call for unsynchronized passes."""

    def __init__(
        self,
        method: Method,
        group: dist.ProcessGroup,
        options: Options,
        *,
        known: Mapping[str, Tensor],
        parameters: Mapping[str, Tensor],
        optimized: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        """Prepares to synchronize `parameters` in a process group.

        Args:
            method: the method.
            group: the workers'.
            options: of the exchange.
            known: by name, all of the model: what a state has of those that are not synchronized is kept.
            parameters: by name, in the model's order, what is synchronized; or this worker's shards of that.
            optimized: returns `parameters` by name as optimizers have them.

        Raises:
            ValueError: a name's pattern matches no parameter; or the method takes no key, not this exchange
                pattern, or cannot take a parameter; or sites, key or number of threads are not valid.
        """
        super().__init__(method, optimized)
        if problems := unmatched_patterns(method.name_patterns, list(known)):
            raise ValueError("; ".join(problems))
        key, threads = options.key, options.threads
        if options.pattern is None:
            backends = {backends_of(group).get(tensor.device.type) for tensor in parameters.values()}
            by_collectives = backends == {"nccl"} and method.has_fixed_size
            by_collectives &= options.sites is None and key is None
            options = replace(options, pattern="collective" if by_collectives else "allgather")
        require_fitting(str(options.pattern), method, options.downlink, options.sites)
        if isinstance(method, NoCompression) and options.pattern in IN_MESSAGES:
            method = self.method = as_messages(method)
        if key is not None and options.pattern == "collective":
            raise ValueError("a key with pattern = collective: torch's collectives do not encrypt")
        if key is not None and not isinstance(method, CompressedMethod) and dist.get_world_size(group) > 1:
            raise ValueError(
                f"a key with {method.kind}: it goes through torch's own all-reduce, without messages"
            )
        self.feedback = Feedback(method)
        self.statistics: dict[str, GradientStatistics] = {}
        self.gradient_scale = 1.0
        self._group, self._known, self._parameters = group, known, parameters
        if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
            raise ValueError(f"threads = {threads!r}: must be a whole number of at least 1")
        self._reducer: Reducer
        if isinstance(method, CompressedMethod):
            reducer = CollectiveReducer if options.pattern == "collective" else CompressedReducer
            self._reducer = reducer(method, group, parameters, self._fail, self.feedback, options)
        elif method.brings_exchange:
            self._reducer = BroughtExchange(method, group, parameters, known, self._fail)
        else:
            self._reducer = AllReduce(method, group, self._fail)
        self._observing = False

    @property
    def workers(self) -> int:
        """The number of workers that synchronize."""
        return dist.get_world_size(self._group)

    @property
    def is_first_worker(self) -> bool:
        """Whether this worker logs for all: the first of its group, and of the first shard."""
        return dist.get_rank(self._group) == 0

    @property
    def traffic(self) -> Traffic:
        """What this worker sent over each link; empty where torch's all-reduce exchanges."""
        return self._reducer.traffic

    def close(self) -> None:
        """Ends the connections, if there are any: those who wait for this worker learn it at once."""
        self._reducer.close()

    def observe_next_step(self) -> None:
        """Makes the next backward pass record every parameter's gradient statistics."""
        self._observing = True

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to continue elsewhere: plain numbers and tensors, for `torch.save`.

        Call it between steps. Residuals have the shapes of their parameters, and names are those without
        wrappers, so that a model which is compiled or lies otherwise in memory can load them. Most tensors
        are the live ones, not copies.
        """
        self._undo_skipped()
        return {
            "version": _STATE_VERSION,
            "rank": dist.get_rank(self._group),
            "workers": self.workers,
            **self.feedback.state_dict(),
            "powersgd": self._reducer.state_dict(),
            "totals": self.totals.state_dict(),
            "traffic": self.traffic.state_dict(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, reshard: bool = False
    ) -> None:
        """Restores what `state_dict` returned.

        With `reshard`, any number of workers go on from the states of another number. The mean of what is
        still to be sent stays what it was: residuals of workers that are gone are added to those of workers
        that are there, and all are multiplied by the ratio of the numbers; new workers have none. Ledgers
        go on; links are counted anew.

        Args:
            state: this worker's; with `reshard`, those of all workers that saved them, in any order.
            reshard: whether they may be another number of workers than now.

        Raises:
            ValueError: the state has another version, lacks a part, or belongs to another worker, another
                number of workers, another method or exchange pattern; or a tensor's parameter does not exist
                here or has another shape, or where sums of shards are kept, another memory format; or with
                `reshard`, a worker's state is missing. Nothing is restored then. A parameter that is frozen
                here exists: its residual is kept, and saved again.
        """
        if reshard:
            state = self._resharded([state] if isinstance(state, Mapping) else state)
        if not isinstance(state, Mapping):
            raise ValueError(f"{len(state)} states: without reshard=True, load this worker's own")
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"version {state.get('version')!r} of a state; this program reads {_STATE_VERSION}: "
                "a state has other parts since, or in another order"
            )
        missing = {"powersgd", "rank", "totals", "traffic", "workers"} - set(state)
        if missing:
            raise ValueError(f"a state without {' and '.join(sorted(missing))}")
        reshard_hint = "load the states of all of them with reshard=True"
        require_same_worker(state, dist.get_rank(self._group), self.workers, reshard_hint)
        totals = Totals.from_state_dict(state["totals"])
        if (state["powersgd"] is None) != (self._reducer.state_dict() is None):
            raise ValueError(f"the state is of another method than {self.method}")
        Traffic(self.workers).load_state_dict(state["traffic"])
        restore = self.feedback.restoring(state, self._known)
        if state["powersgd"] is not None:
            self._reducer.load_state_dict(state["powersgd"])
        restore()
        self.traffic.load_state_dict(state["traffic"])
        self._before_last, self.last_step, self.failure = totals, Step(), None
        self._reducer.end_step(skipped=False, stepped=set())

    def _resharded(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """This worker's part of what all workers of another number had (`exchange/resizing.py`)."""
        former = ranks_together(
            [{str(state["rank"]): state} for state in states], [state["workers"] for state in states]
        )
        rank, reducer = dist.get_rank(self._group), self._reducer
        state = dict(former[model_of(rank, len(former))])
        state.pop("downlink", None)
        kept = resharded(
            former,
            rank,
            self.workers,
            self.method.reduction,
            reducer.shards,
            self.feedback,
            reduces_shards=reducer.reduces_shards,
        )
        traffic = Traffic(self.workers).state_dict()
        return {**state, **kept, "rank": rank, "workers": self.workers, "traffic": traffic}

    def _begin_pass(self, uncleared: set[str]) -> None:
        """Begins a backward pass that is exchanged.

        Args:
            uncleared: the parameters whose gradients hold what was exchanged before.
        """
        begins_step = self._steps.begin_pass(uncleared)
        if begins_step:
            self._undo_skipped()
            self._begin_step()
        else:
            self._require_no_memory_of_steps()
            self.last_step.residual_squares = 0.0
        self.failure = None
        self.feedback.begin_pass(begins_step=begins_step)
        self._reducer.begin(self._before_last.steps)
        if self._observing:
            self.statistics = {}

    def _undo_skipped(self) -> None:
        """Restores the residuals of parameters whose optimizer has skipped the latest step."""
        self._reducer.end_step(skipped=self.last_step.skipped, stepped=self._steps.stepped)

    def _reduce(self, bucket: Bucket, factor: float) -> Future[Tensor]:
        """Starts to synchronize a bucket of gradients, after they were multiplied by a factor."""
        if factor != 1:
            bucket.buffer.mul_(factor)
        if self._observing:
            for name, gradient in zip(bucket.names, bucket.shares, strict=True):
                self.statistics[name] = gradient_statistics(gradient)
        with self._reducer.noting_failures():
            return self._reducer.synchronize(bucket, self.last_step)

    def _end_pass(self) -> None:
        """All buckets of a backward pass are on their way."""
        self._reducer.on_hooks_done(self.last_step)
        self._observing = False

    def _require_no_memory_of_steps(self) -> None:
        """Raises CompressionError if the method has a memory that decays with every exchange."""
        if not isinstance(self.method, CompressedMethod) or self.last_step.skipped:
            return
        field = "momentum" if self.method.momentum_correction else "decay"
        if self.method.momentum_correction or 0 < self.method.decay < 1:  # at 0, there is no memory
            raise self._fail(
                CompressionError(
                    f"a second exchange in one step would apply the method's {field} twice: run all backward "
                    f"passes but the last in {self._accumulating}"
                )
            )

    def _check_agreement_and_connect(self, description: Mapping[str, str]) -> None:
        """Compares settings, besides those of method and exchange, with all others', and connects to them."""
        settings = {
            **flattened(self.method),
            **self._reducer.settings,
            **description,
            "steps done": str(self._before_last.steps),
        }
        try:
            if self.workers > 1:
                require_agreement(settings, self._group)
            self._reducer.open()
        except CompressionError as problem:
            raise self._fail(problem) from None

    def _fail(self, problem: CompressionError) -> CompressionError:
        super()._fail(problem)
        if isinstance(problem, PeerLost):
            self.close()  # the others need not wait for a timeout
        return problem
