"""What the workers of the hook's tests run: one process a worker, real DDP over gloo.

    python scenarios.py GROUP RANK WORKERS FOLDER

runs every scenario of a group and saves what each returned, as plain data, in FOLDER/GROUP-RANK.pt. The
tests read those files (`run_group`) and judge; nothing is asserted here.
"""

import hashlib
import inspect
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from forked import run_workers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.errors import CompressionError
from taugrad.compressors.exchange.buckets import Arriving, Exchange, ExchangeForm
from taugrad.compressors.method import Method
from taugrad.compressors.ops.array import Bytes
from taugrad.compressors.ops.segments import Segments
from taugrad.compressors.wire import message
from taugrad.compressors.wire.update import Update

Config = Mapping[str, Any] | Method | str
Result = dict[str, Any]

RULES = ("wgt", "bgt", "qgt")
CODEC_NAMES = ("auto", "packed32", "bitmap", "raw", "golomb_rice")
TAU = {"wgt": 0.02, "bgt": 0.01, "qgt": 0.004, "strom": 0.01}
STEPS = 5
LEARNING_RATE, MOMENTUM = 0.1, 0.9
TIMEOUT_S = 400
SITES = {2: [[0], [1]], 3: [[0, 2], [1]]}
"""By the number of workers."""
TINY_BUCKETS = 0.0002
"""A bucket_cap_mb that gives almost every parameter a bucket of its own."""


class Network(nn.Module):
    """A small net whose layers are registered in another order than they are used in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(11, 5)
        self.middle = nn.Linear(17, 11)
        self.first = nn.Linear(6, 17)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.middle(torch.tanh(self.first(inputs)))))
        return outputs


def make_model() -> Network:
    """The same weights on every call."""
    torch.manual_seed(0)
    return Network()


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    """The loss of a worker's batch; the same numbers in every process."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 6, generator=generator)
    labels = torch.randint(0, 5, (8,), generator=generator)
    inputs = inputs.to(next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(inputs), labels)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def digest(model: nn.Module) -> str:
    """SHA-256 of all weights."""
    weights = (parameter.detach().flatten().view(torch.uint8).numpy() for parameter in model.parameters())
    return hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Copies of every parameter's gradient."""
    named = model.named_parameters()
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in named}


class Run:
    """One worker's training, and the sums that tell whether anything was lost.

    Attributes:
        local: by parameter, the sum of this worker's finite gradients, float64.
        latest: by parameter, this worker's gradient of the latest step.
        applied: by parameter, the sum of the synchronized gradients, skipped steps left out, float64.
        digests: of the weights after each step.
        poison: by step, the parameter whose first element's gradient becomes the value given.
    """

    def __init__(
        self,
        config: Config | None,
        *,
        model: nn.Module | None = None,
        recording: Callable[..., Any] = compressed_allgather,
        exchange: ExchangeForm = "exact",
        sites: Sequence[Sequence[int]] | None = None,
        **ddp_options: Any,
    ) -> None:
        self.model = make_model() if model is None else model
        ddp_options.setdefault("process_group", dist.new_group())
        self.ddp = DistributedDataParallel(self.model, **ddp_options)
        self.state: CompressionState = None  # type: ignore[assignment]
        if config is not None:
            self.state = CompressionState(self.ddp, config, exchange=exchange, sites=sites)
            self.ddp.register_comm_hook(self.state, recording)
        self.optimizer = make_optimizer(self.model)
        self.local = {
            name: torch.zeros_like(each, dtype=torch.complex128 if each.is_complex() else torch.float64)
            for name, each in self.model.named_parameters()
        }
        self.applied = {name: torch.zeros_like(total) for name, total in self.local.items()}
        self.latest: dict[str, Tensor] = {}
        self.digests: list[str] = []
        self.skipped: list[int] = []
        self.poison: dict[int, tuple[str, float]] = {}
        self.at = 0
        for name, parameter in self.model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: self._note(name, gradient))

    def _note(self, name: str, gradient: Tensor) -> Tensor:
        if self.at in self.poison and self.poison[self.at][0] == name:
            gradient = gradient.clone()
            gradient.view(-1)[0] = self.poison[self.at][1]
        finite = torch.where(torch.isfinite(gradient), gradient, 0)
        self.local[name] += finite
        self.latest[name] = gradient.detach().clone()
        return gradient

    def backward(self, loss: Tensor) -> None:
        """Synchronizes one step's gradients; the optimizer does not step yet."""
        self.optimizer.zero_grad()
        loss.backward()

    def step(self, loss: Tensor | None = None) -> None:
        """One whole step; with no loss given that of the default batch."""
        self.backward(loss_of(self.ddp, dist.get_rank(), self.at) if loss is None else loss)
        self.finish_step()

    def finish_step(self) -> None:
        """The optimizer's part of a step."""
        if self.state is not None and self.state.last_step.skipped:
            self.skipped.append(self.at)
        else:
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None:
                    self.applied[name] += parameter.grad.double()
            self.optimizer.step()
        self.digests.append(digest(self.model))
        self.at += 1

    def steps(self, count: int = STEPS) -> "Run":
        for _ in range(count):
            self.step()
        return self

    def result(self, **more: Any) -> Result:
        """What the tests compare."""
        result: Result = {"digests": self.digests, "local": self.local, "applied": self.applied, **more}
        if self.state is not None:
            self.state.state_dict()  # puts the updates of a skipped last step back
            residuals = {name: residual.clone() for name, residual in self.state.feedback.residuals.items()}
            result |= {"residuals": residuals, "totals": self.state.totals.state_dict()}
        return result


def thresholded(rule: str, **more: Any) -> dict[str, Any]:
    return {"kind": rule, "tau": TAU[rule], **more}


# Training as usual.


def none_and_plain() -> Result:
    plain, hooked = Run(None).steps(), Run({"kind": "none"}).steps()
    plain_buckets = Run(None, bucket_cap_mb=TINY_BUCKETS).steps()
    hooked_buckets = Run({"kind": "none"}, bucket_cap_mb=TINY_BUCKETS).steps()
    return {
        "plain": [plain.digests, plain_buckets.digests],
        "hooked": [hooked.digests, hooked_buckets.digests],
        "totals": hooked.state.totals.state_dict(),
        "layers": [(layer.name, layer.elements, layer.sent) for layer in hooked.state.last_step.layers],
    }


def everything_sent_and_plain() -> Result:
    plain, hooked = Run(None).steps(), Run({"kind": "wgt", "tau": 1e-30}).steps()
    weights = [[p.detach().clone() for p in run.model.parameters()] for run in (plain, hooked)]
    return {"plain": weights[0], "hooked": weights[1], "totals": hooked.state.totals.state_dict()}


def every_rule_and_codec() -> Result:
    result = {("strom", "auto"): Run(thresholded("strom")).steps().result()}
    for rule in RULES:
        for codec in CODEC_NAMES:
            plain = {"symbols": "raw"} if rule == "qgt" and codec not in ("auto", "raw") else {}
            result[rule, codec] = Run(thresholded(rule, codec=codec, **plain)).steps().result()
    return result


def every_form_of_exchange() -> Result:
    """Messages of very different lengths on each worker, in buckets of a few hundred bytes and in one."""
    lines = {
        "growing": "strom(schedule({0: 0.5, 2: 0.02, 3: 0.3}))",
        "refused": "wgt(0.03, nonfinite='skip')",
    }
    result: Result = {}
    for form in get_args(ExchangeForm):
        for buckets, cap in {"many": TINY_BUCKETS, "one": 25}.items():
            for each, line in lines.items():
                sites = SITES[dist.get_world_size()] if form == "hierarchical" else None
                run = Run(line, exchange=form, bucket_cap_mb=cap, sites=sites)
                if each == "refused" and dist.get_rank() == 0:
                    run.poison = {2: ("first.bias", math.nan)}
                result[form, buckets, each] = run.steps().result(skipped=run.skipped)
    for form in get_args(ExchangeForm):
        damaged = Run(thresholded("wgt"), exchange=form).steps(3)
        start = Exchange.start

        def tampered(self: Exchange, own: Bytes, bucket: int, start: Any = start) -> Arriving:
            own[-1] ^= 4
            arriving: Arriving = start(self, own, bucket)
            return arriving

        if dist.get_rank() == 0:
            Exchange.start = tampered  # type: ignore[method-assign]
        result[form, "damaged"] = failure_of(damaged)
        Exchange.start = start  # type: ignore[method-assign]
    return result


def every_rule() -> Result:
    return {rule: Run(thresholded(rule)).steps().result() for rule in (*RULES, "strom")}


def several_buckets() -> Result:
    result = {}
    for rule in RULES:
        layouts: list[tuple[int, list[str]]] = []
        buffers: list[int] = []

        def recording(
            state: CompressionState,
            bucket: dist.GradBucket,
            layouts: list[Any] = layouts,
            buffers: list[int] = buffers,
        ) -> torch.futures.Future[Tensor]:
            names = [state._names[id(parameter)] for parameter in bucket.parameters()]
            layouts.append((bucket.index(), names))
            buffers.append(bucket.buffer().data_ptr())
            return compressed_allgather(state, bucket)

        run = Run(thresholded(rule), recording=recording, bucket_cap_mb=TINY_BUCKETS).steps()
        taus = run.state.last_step.taus
        held = [kept.at[0] for kept in run.state._protocol._shares.values()]  # type: ignore[attr-defined]
        result[rule] = run.result(layouts=layouts, taus=taus, buffers=buffers, held=held)
    return result


def a_ledger_by_step() -> Result:
    """Ledgers of single steps, beside the residual that each left."""
    run, steps = Run(thresholded("qgt", codec="packed32")), []
    for _ in range(STEPS):
        run.step()
        last = run.state.last_step
        kept = run.state.feedback.residuals.values()
        squares = sum(float(residual.double().square().sum()) for residual in kept)
        layers = [(layer.name, layer.elements, layer.sent) for layer in last.layers]
        seconds = [last.compress_s, last.exchange_s, last.blocked_s, last.decompress_s]
        steps.append(
            {
                "totals": last.state_dict(),
                "residual_squares": last.residual_squares,
                "squares": squares,
                "layers": layers,
                "taus": last.taus,
                "seconds": seconds,
            }
        )
    return {"steps": steps, "totals": run.state.totals.state_dict()}


def accumulation_without_sync() -> Result:
    rank, config = dist.get_rank(), {"kind": "wgt", "tau": 1e-30}
    run = Run(config)
    run.optimizer.zero_grad()
    with run.ddp.no_sync():
        loss_of(run.ddp, rank, 0).backward()
    quiet = run.state.totals.state_dict()
    own = gradients(run.model)
    loss_of(run.ddp, rank, 1).backward()
    larger = Run(config)
    larger.backward(loss_of(larger.ddp, rank, 0) + loss_of(larger.ddp, rank, 1))
    return {
        "quiet": quiet,
        "own": own,
        "local": run.local,
        "accumulated": gradients(run.model),
        "larger": gradients(larger.model),
        "totals": run.state.totals.state_dict(),
    }


class Branches(nn.Module):
    """A net with parts that a step may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.rarely = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5)
        self.used: set[str] = set()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.always(inputs)
        for name in ("sometimes", "rarely"):
            if name in self.used:
                outputs = outputs + getattr(self, name)(inputs)
        return outputs


def two_models_at_once() -> Result:
    """Two models in two process groups, one backward pass through both."""
    rank = dist.get_rank()
    one, two = Run(thresholded("wgt")), Run(thresholded("qgt"))
    for step in range(STEPS):
        one.optimizer.zero_grad()
        two.optimizer.zero_grad()
        (loss_of(one.ddp, rank, step) + loss_of(two.ddp, rank, step)).backward()
        one.finish_step()
        two.finish_step()
    return {"wgt": one.result(), "qgt": two.result()}


def different_taus() -> Result:
    """Each worker finds a threshold of its own; messages carry it."""
    result = {}
    for rule in RULES:
        run, taus = Run({"kind": rule, "tau": {"kind": "density", "target": 0.3}}), []
        for _ in range(STEPS):
            run.step()
            taus.append(list(run.state.last_step.taus))
        result[rule] = {"digests": run.digests, "taus": taus}
    return result


def tau_above_everything() -> Result:
    result = {}
    for rule in RULES:
        run = Run({"kind": rule, "tau": 1e30})
        before = digest(run.model)
        run.steps(3)
        result[rule] = run.result(before=before, gradients=gradients(run.model))
    return result


def all_zero_gradient() -> Result:
    result = {}
    for kind in ("none", *RULES):
        run = Run({"kind": kind} if kind == "none" else thresholded(kind))
        before = digest(run.model)
        run.step(loss_of(run.ddp, dist.get_rank(), 0) * 0)
        result[kind] = run.result(before=before)
    return result


class WithNothing(Network):
    """A net with a parameter of no elements between others."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0))
        self.last = nn.Parameter(torch.ones(5))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs) * self.last + self.nothing.sum()
        return outputs


def a_parameter_without_elements() -> Result:
    result = {}
    for kind in ("none", *RULES):
        for cap in (None, TINY_BUCKETS):
            torch.manual_seed(0)
            config = {"kind": kind} if kind == "none" else thresholded(kind)
            run = Run(config, model=WithNothing(), bucket_cap_mb=cap).steps(3)
            result[kind, cap] = run.result()
    return result


def observed_statistics() -> Result:
    run, seen = Run(thresholded("wgt"), bucket_cap_mb=TINY_BUCKETS), []
    for step in range(4):
        if step in (0, 2):
            run.state.observe_next_step()
        run.step()
        seen.append({name: tuple(statistics) for name, statistics in run.state.statistics.items()})
        if step == 0:
            first = {name: total.clone() for name, total in run.local.items()}
    return {"seen": seen, "first": first}


# What goes wrong.


def failure_of(run: Run) -> Result:
    """What a backward pass that must fail left behind."""
    before = digest(run.model)
    try:
        run.backward(loss_of(run.ddp, dist.get_rank(), run.at))
    except (RuntimeError, CompressionError) as error:
        raised = str(error)
    else:
        raised = ""
    failure = run.state.failure
    return {
        "raised": raised,
        "kind": type(failure).__name__,
        "text": str(failure),
        "parameter": getattr(failure, "parameter", None),
        "rank": getattr(failure, "rank", None),
        "untouched": digest(run.model) == before,
        "gradients": gradients(run.model),
        "own": run.latest,
    }


def corrupt_messages() -> Result:
    """Worker 0 damages what it sends in the fourth step."""
    start = Exchange.start
    nothing = np.empty(0, np.uint32), np.zeros(1, np.int64)
    other = message.write_all([(Update("f32", Segments.side_by_side([3]), *nothing), "auto")], "auto")
    stranger = message.write_nonfinite(message.NonFinite("f32", 0, 99))

    def flip(own: Bytes) -> Bytes:
        own[-1] ^= 4
        return own

    def name_a_stranger(own: Bytes) -> Bytes:
        n = int(own[8:12].view(np.uint32)[0])
        return message.write_nonfinite(message.NonFinite("f32", n, 99))

    tampers: dict[str, Callable[[Bytes], Bytes]] = {
        "flipped bit": flip,
        "truncated": lambda own: own[:-1],
        "nothing at all": lambda own: own[:0],
        "of another bucket": lambda own: other,
        "a refusal of another bucket": lambda own: stranger,
        "a refusal of an unknown parameter": name_a_stranger,
    }
    result = {}
    for name, tamper in tampers.items():
        for mode in ("refuse", "skip"):
            run = Run(thresholded("wgt", nonfinite=mode)).steps(3)

            def tampered(
                self: Exchange, own: Bytes, bucket: int, tamper: Callable[[Bytes], Bytes] = tamper
            ) -> Arriving:
                return start(self, tamper(own), bucket)

            if dist.get_rank() == 0:
                Exchange.start = tampered  # type: ignore[method-assign]
            result[name, mode] = failure_of(run)
            Exchange.start = start  # type: ignore[method-assign]
    return result


def workers_that_disagree() -> Result:
    """Worker 0 does what the first way says, the others what the second one says."""
    first = dist.get_rank() == 0
    result = {}
    for name, ways in {
        "rule": ("wgt(0.01)", "bgt(0.01)"),
        "none": ("none", "wgt(0.01)"),
        "powersgd": ("powersgd", "none"),
        "reduction": ("wgt(0.01)", "wgt(0.01, reduction='sum')"),
        "reduction of none": ({"kind": "none"}, {"kind": "none", "reduction": "sum"}),
        "tau": ("wgt(density(0.1))", "wgt(density(0.2))"),
        "seed": ("powersgd(seed=1)", "powersgd(seed=2)"),
    }.items():
        result[name] = timed_failure(Run(ways[not first]))
    result["exchange"] = timed_failure(Run(thresholded("wgt"), exchange="exact" if first else "hierarchical"))
    result["buckets"] = timed_failure(
        Run("none", bucket_cap_mb=25 if first else TINY_BUCKETS, find_unused_parameters=True)
    )
    result["unused"] = timed_failure(Run("none", find_unused_parameters=first))
    named = nn.Sequential(OrderedDict([("first" if first else "other", nn.Linear(6, 5))]))
    result["names"] = timed_failure(Run("none", model=named))
    late = Run("wgt(0.01)").steps(2)
    again = Run("wgt(0.01)")
    if first:
        again.state.load_state_dict(late.state.state_dict())
    result["steps"] = timed_failure(again)
    return result


def timed_failure(run: Run) -> Result:
    started = monotonic()
    return {**failure_of(run), "seconds": monotonic() - started}


# Checkpoints.


def states_that_do_not_fit() -> Result:
    run = Run(thresholded("wgt")).steps(2)
    good = run.state.state_dict()
    before = {name: residual.clone() for name, residual in run.state.feedback.residuals.items()}
    residuals = good["residuals"]
    low_rank = CompressionState(run.ddp, "powersgd").state_dict()
    wrong = {
        "version": {**good, "version": 1},
        "before": {**good, "version": 6},
        "rank": {**good, "rank": 1, "workers": 2},
        "workers": {**good, "workers": 3},
        "no rank": {name: value for name, value in good.items() if name != "rank"},
        "no version": {name: value for name, value in good.items() if name != "version"},
        "no velocities": {name: value for name, value in good.items() if name != "velocities"},
        "velocity": {**good, "velocities": {"head.bias": torch.zeros(4)}},
        "memory": {**good, "memories": {"tail.weight": {"tau": 1.0}}},
        "other policy": {**good, "memories": {"head.bias": {"tau": 1.0}}},
        "totals": {**good, "totals": {"steps": 2}},
        "method": {**good, "powersgd": low_rank["powersgd"]},
        "unknown name": {**good, "residuals": {**residuals, "tail.weight": torch.zeros(3)}},
        "size": {**good, "residuals": {**residuals, "head.bias": torch.zeros(4)}},
        "shape": {**good, "residuals": {**residuals, "head.weight": torch.zeros(11, 5)}},
        "type": {**good, "residuals": {**residuals, "head.bias": torch.zeros(5, dtype=torch.float64)}},
    }
    raised = {}
    for name, state in wrong.items():
        try:
            run.state.load_state_dict(state)
        except ValueError as error:
            raised[name] = str(error)
    same = all(torch.equal(residual, before[name]) for name, residual in run.state.feedback.residuals.items())
    copies = run.state.feedback.residuals
    run.state.load_state_dict({**good, "residuals": dict(residuals)})
    kept = run.state.feedback.residuals
    shared = [name for name in copies if kept[name].data_ptr() == residuals[name].data_ptr()]
    return {"raised": raised, "untouched": same, "shared": shared}


GROUPS: dict[str, list[Callable[..., Result]]] = {
    "training-2": [
        none_and_plain,
        everything_sent_and_plain,
        every_rule_and_codec,
        every_form_of_exchange,
        several_buckets,
        a_ledger_by_step,
        accumulation_without_sync,
        two_models_at_once,
        different_taus,
        tau_above_everything,
        all_zero_gradient,
        a_parameter_without_elements,
        observed_statistics,
        corrupt_messages,
        workers_that_disagree,
    ],
    "training-3": [
        none_and_plain,
        everything_sent_and_plain,
        every_rule,
        every_form_of_exchange,
        several_buckets,
        tau_above_everything,
    ],
    "training-1": [none_and_plain, every_rule, tau_above_everything, states_that_do_not_fit],
}


def run_group(script: Path, group: str, workers: int, folder: Path) -> list[Result]:
    """Runs a script's group of scenarios, a process a worker; what each returned, by rank.

    Raises:
        AssertionError: a worker failed, or hung.
    """
    run_workers(script, lambda rank: (group, rank, workers, folder), workers, timeout_s=TIMEOUT_S)
    return [torch.load(folder / f"{group}-{rank}.pt", weights_only=True) for rank in range(workers)]


def main(groups: Mapping[str, Sequence[Callable[..., Result]]]) -> None:
    """One worker: runs the scenarios of the group that the command line names."""
    group, rank, workers, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/{group}-rendezvous",
        rank=rank,
        world_size=workers,
        timeout=timedelta(seconds=60),
    )
    results = {}
    for scenario in groups[group]:
        wants_folder = "folder" in inspect.signature(scenario).parameters
        results[scenario.__name__] = scenario(folder) if wants_folder else scenario()
    torch.save(results, folder / f"{group}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(GROUPS)
