"""Scenarios of real workers over gloo: what they share, and their list.

A scenario is a function that all workers of a group call. It trains, asks the others what they found
(`everyone`), and asserts; each has process groups of its own. `ddp_process.py` runs them one after the other,
for starting a process takes seconds and a scenario milliseconds; `test_ddp.py` says of each whether it held.
"""

import gc
import hashlib
import io
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from bits import same
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.errors import CompressionError
from taugrad.compressors.exchange.carrier import Round
from taugrad.compressors.exchange.collectives import Collectives
from taugrad.compressors.exchange.mesh import Mesh
from taugrad.compressors.methods import Method
from taugrad.compressors.ops.array import Bytes
from taugrad.compressors.pattern_names import PatternName

Config = Mapping[str, Any] | Method | str
Tensors = Mapping[str, Any]

STEPS = 5
DEVICE = torch.device(os.environ.get("TAUGRAD_TESTS_DEVICE", "cpu"))
"""Where models are; workers share a GPU, and talk over gloo all the same."""
TINY_BUCKETS = 0.0002
"""A bucket_cap_mb that gives almost every parameter a bucket of its own."""

SCENARIOS: dict[int, dict[str, Callable[[], None]]] = {workers: {} for workers in (1, 2, 3, 4)}
"""By the number of workers, all that they run."""
KILLED: dict[str, tuple[int, ...]] = {}
"""By the name of a scenario, the ranks whose processes it kills; it is its group's last."""

RUNS: list["Run"] = []
GROUPS: list[dist.ProcessGroup] = []
"""What a scenario made: carriers and groups have threads of their own."""


def clean_up() -> None:
    """Ends what a scenario left."""
    for run in RUNS:
        run.close()
    RUNS.clear()
    gc.collect()
    gc.freeze()  # modules stay: looking through them after each scenario took longer than most scenarios
    for group in GROUPS:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    GROUPS.clear()


def scenario(
    *workers: int, values: Iterable[Any] = (), kills: tuple[int, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Lists a function as a scenario of groups of so many workers, once or for each of some values."""

    def listed(run: Callable[..., None]) -> Callable[..., None]:
        if kills:
            KILLED[run.__name__] = kills
        cases = {f"{run.__name__}[{value}]": partial(run, value) for value in values} or {run.__name__: run}
        for count in workers:
            SCENARIOS[count] |= cases
        return run

    return listed


def new_group(ranks: Sequence[int] | None = None, timeout_s: float = 240) -> Any:
    """A group that ends with the scenario; all workers must call this."""
    GROUPS.append(dist.new_group(ranks and [*ranks], timeout=timedelta(seconds=timeout_s)))
    return GROUPS[-1]


class _Pickler(pickle.Pickler):
    """Tensors as NumPy's arrays: torch writes a file for each."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and value.device.type == "cpu" and value.dtype in _OF_NUMPY:
            return torch.from_numpy, (value.detach().numpy(),)
        return NotImplemented


_OF_NUMPY = (torch.float32, torch.float64, torch.int64, torch.complex128)


def everyone(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """What each worker gives, by rank; every worker gets all of it."""
    file, gathered = io.BytesIO(), [b""] * dist.get_world_size(group)
    _Pickler(file).dump(value)
    dist.all_gather_object(gathered, file.getvalue(), group)
    return [pickle.loads(data) for data in gathered]


def assert_alike(value: Any) -> None:
    """Fails unless all workers have the same."""
    values = everyone(value)
    assert all(value == values[0] for value in values), values


def assert_close(actual: Tensors, expected: Tensors, times: float = 1.0) -> None:
    """Fails unless the same parameters have a tensor, of the same values to a float's rounding."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        if tensor is None:
            assert actual[name] is None, name
        else:
            torch.testing.assert_close(actual[name], tensor * times, rtol=1e-5, atol=2e-6)


def assert_same(actual: Any, expected: Any) -> None:
    """Fails where two states differ in a name or a bit."""
    assert same(actual, expected), (actual, expected)


def refusal(attempt: Callable[[], Any]) -> str:
    """The error that an attempt ends in."""
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


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
    return Network().to(DEVICE)


SIZES = {name: tensor.numel() for name, tensor in make_model().named_parameters()}
ELEMENTS = sum(SIZES.values())


def batch_of(rank: int, step: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a worker's step; the same numbers in every process."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, *shape, generator=generator)
    return inputs.to(DEVICE), torch.randint(0, 5, (8,), generator=generator).to(DEVICE)


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    """The loss of a worker's batch."""
    inputs, labels = batch_of(rank, step, 6)
    return nn.functional.cross_entropy(model(inputs.to(next(model.parameters()).dtype)), labels)


def digest(model: nn.Module) -> str:
    """SHA-256 of all weights."""
    weights = (
        parameter.detach().cpu().flatten().view(torch.uint8).numpy() for parameter in model.parameters()
    )
    return hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()


def gradients(model: nn.Module) -> dict[str, Any]:
    """Copies of every parameter's gradient; None where there is none."""
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
        hook: Callable[..., Any] = compression_hook,
        loss: Callable[[nn.Module, int, int], Tensor] = loss_of,
        pattern: PatternName | None = None,
        sites: Sequence[Sequence[int]] | None = None,
        downlink: Config | None = None,
        **ddp_options: Any,
    ) -> None:
        self.model = make_model() if model is None else model.to(DEVICE)
        self.loss = loss
        if "process_group" not in ddp_options:
            ddp_options["process_group"] = new_group()
        self.ddp = DistributedDataParallel(self.model, **ddp_options)
        self.state: CompressionState = None  # type: ignore[assignment]
        if config is not None:
            self.state = CompressionState(self.ddp, config, pattern=pattern, sites=sites, downlink=downlink)
            self.ddp.register_comm_hook(self.state, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.local = {
            name: torch.zeros_like(
                parameter, dtype=torch.complex128 if parameter.is_complex() else torch.float64
            )
            for name, parameter in self.model.named_parameters()
        }
        self.applied = {name: torch.zeros_like(total) for name, total in self.local.items()}
        self.latest: dict[str, Tensor] = {}
        self.digests: list[str] = []
        self.skipped: list[int] = []
        self.poison: dict[int, tuple[str, float]] = {}
        self.at = 0
        self._hooks = [
            parameter.register_hook(lambda gradient, name=name: self._note(name, gradient))
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        ]
        RUNS.append(self)

    def close(self) -> None:
        """Disconnects, and lets go of what holds it in the graph."""
        for hook in self._hooks:
            hook.remove()
        if self.state is not None:
            self.state.close()

    def _note(self, name: str, gradient: Tensor) -> Tensor:
        if self.at in self.poison and self.poison[self.at][0] == name:
            gradient = gradient.clone()
            gradient.view(-1)[0] = self.poison[self.at][1]
        self.local[name] += torch.where(torch.isfinite(gradient), gradient, 0)
        self.latest[name] = gradient.detach().clone()
        return gradient

    def backward(self) -> None:
        """Synchronizes one step's gradients; the optimizer does not step yet."""
        self.optimizer.zero_grad()
        self.loss(self.ddp, dist.get_rank(), self.at).backward()

    def step(self) -> None:
        """One whole step."""
        self.backward()
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

    @property
    def residuals(self) -> dict[str, Tensor]:
        """Copies of what is kept; the updates of a skipped last step are put back before."""
        self.state.state_dict()
        return {name: residual.clone() for name, residual in self.state.feedback.residuals.items()}

    @property
    def unsent(self) -> dict[str, Tensor]:
        """By parameter, float64 [numel], what this worker owes to the sum of all gradients."""
        state = self.state.state_dict()
        kept = {name: torch.zeros(total.numel()).double() for name, total in self.local.items()}
        own = state["residuals"] if state["powersgd"] is None else state["powersgd"]["errors"]
        for name, residual in own.items():
            kept[name] += residual.cpu().flatten()
        if (back := self.state.feedback.sums) is not None:  # of a sum or mean of all workers
            workers = self.state.workers if self.state.method.reduction == "mean" else 1
            for name, residual in back.residuals.items():
                part = back.slices[name]
                kept[name][part.start : part.stop] += workers * residual.double().cpu()
        return kept

    def go_on(self, earlier: "Run") -> "Run":
        """Takes over weights, optimizer and state as a file of them would bring them."""
        parts = (
            (self.model, earlier.model),
            (self.optimizer, earlier.optimizer),
            (self.state, earlier.state),
        )
        for mine, theirs in parts:
            mine.load_state_dict(through_a_file(theirs.state_dict()))
        self.at = earlier.at
        return self


def through_a_file(state: Any) -> Any:
    """What `torch.load` makes of what `torch.save` wrote."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_nothing_lost(run: Run, precision: float = 1e-5) -> None:
    """What was applied and what the workers keep are the sum of all their gradients, by parameter."""
    workers = dist.get_world_size()
    given, kept = everyone(run.local), everyone(run.unsent)
    for name, applied in run.applied.items():
        owed, received = sum(gradients[name] for gradients in given), workers * applied
        received += sum(unsent[name] for unsent in kept).to(DEVICE).view_as(applied)
        scale = float(sum(gradients[name].abs().max() for gradients in given)) + 1e-3
        torch.testing.assert_close(received, owed, rtol=0, atol=precision * scale)


class HandedOver:
    """What buckets gave to this worker's carriers.

    Attributes:
        nbytes: int64 [workers], bytes by receiver.
        messages: likewise, how many messages.
        all_reduced: elements that torch's all-reduce got.
    """

    def __init__(self) -> None:
        self.nbytes, self.messages = torch.zeros(2, dist.get_world_size(), dtype=torch.int64)
        self.all_reduced = 0

    def note(self, payload: Bytes, receivers: Sequence[int]) -> None:
        self.nbytes[receivers] += payload.size
        self.messages[receivers] += 1


@contextmanager
def handed_over() -> Iterator[HandedOver]:
    """Notes what is handed over meanwhile."""
    handed, send, exchange, all_reduce = HandedOver(), Mesh.send, Collectives.exchange, dist.all_reduce

    def sent(mesh: Mesh, to: int, tag: str, payload: Bytes) -> None:
        if tag.startswith("bucket"):  # not the mesh's own
            handed.note(payload, [to])
        send(mesh, to, tag, payload)

    def exchanged(collectives: Collectives, this: Round, tag: str) -> Any:
        for payload, receivers in this.sends:
            handed.note(payload, receivers)
        return exchange(collectives, this, tag)

    def all_reduced(tensor: Tensor, *given: Any, **options: Any) -> Any:
        handed.all_reduced += tensor.numel()
        return all_reduce(tensor, *given, **options)

    with (
        patch.object(Mesh, "send", sent),
        patch.object(Collectives, "exchange", exchanged),
        patch.object(dist, "all_reduce", all_reduced),
    ):
        yield handed


def failure_of(run: Run) -> CompressionError:
    """What a backward pass fails with, which must change no weight and hand out its text."""
    before = digest(run.model)
    raised = refusal(run.backward)
    failure = run.state.failure
    assert failure is not None, raised
    assert str(failure) in raised
    assert digest(run.model) == before
    return failure
