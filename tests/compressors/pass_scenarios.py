"""What the workers of test_hook_passes.py run; used as scenarios.py is."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from scenarios import TINY_BUCKETS, Result, Run, gradients, loss_of, main, make_model
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather

SEQUENCES = (
    "x x",
    "x x x",
    "n x x",
    "x n x",
    "x none x x",
    "x zero x x",
    "x late-none x",
    "x late-zero x",
    "x n zero x",
    "x n none x x",
)
"""Backward passes that exchange (x) or do not (n), and what clears gradients between them: before the forward
pass, or late, after it."""
METHODS: dict[str, Any] = {
    "none": "none",
    "none, sum": {"kind": "none", "reduction": "sum"},
    "wgt": "wgt(tau=1e-30)",
    "wgt, sum": "wgt(tau=1e-30, reduction='sum')",
    "powersgd": "powersgd(start=100)",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True, "bucket_cap_mb": TINY_BUCKETS},
    "static": {"static_graph": True, "gradient_as_bucket_view": True},
}
CASES = [
    *((sequence, option, "none", 1.0) for sequence in SEQUENCES for option in ("default", "view")),
    *((sequence, option, "wgt", 1024.0) for sequence in SEQUENCES for option in ("default", "view")),
    *(("x x", option, method, 1024.0) for option in OPTIONS for method in METHODS),
    *(("x n x", "unused", method, 1024.0) for method in METHODS),
]
"""Sequence, option, method and the loss's scale."""


def passes(run: Run, sequence: str, scale: float = 1.0, loss: Callable[..., Tensor] = loss_of) -> None:
    """One optimizer step's passes; each has a batch of its own."""
    if run.state is not None:
        run.state.gradient_scale = 1 / scale
    late: str | None = None
    for each in sequence.split():
        if each in ("x", "n"):
            with run.ddp.no_sync() if each == "n" else nullcontext():
                found = scale * loss(run.ddp, dist.get_rank(), run.at)
                if late is not None:
                    run.optimizer.zero_grad(set_to_none=late == "none")
                    late = None
                found.backward()
            run.at += 1
        elif each.startswith("late-"):
            late = each.removeprefix("late-")
        elif each == "edit":
            for parameter in run.model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(1 + dist.get_rank())
        else:
            run.optimizer.zero_grad(set_to_none=each == "none")


def several_passes() -> Result:
    result: Result = {}
    for sequence, option, method, scale in CASES:
        if (sequence, option) not in result:
            plain = Run(None, **OPTIONS[option])
            passes(plain, sequence)
            result[sequence, option] = gradients(plain.model)
        run = Run(METHODS[method], **OPTIONS[option])
        passes(run, sequence, scale)
        totals = run.state.totals.state_dict()
        result[sequence, option, method, scale] = {"gradients": gradients(run.model), "totals": totals}
    return result


def edited_between() -> Result:
    """Each worker makes something else of the first pass's gradients."""
    plain, run = Run(None), Run("none")
    passes(plain, "x edit x")
    passes(run, "x edit x", 1024.0)
    return {"plain": gradients(plain.model), "hooked": gradients(run.model)}


class Halves(nn.Module):
    """Two parts, of which a pass uses some."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.never = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5)
        self.used = [self.one]

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack([part(inputs) for part in self.used]).sum(0)


def parts_in_turn() -> Result:
    """A parameter has a gradient of some passes only, on some workers only."""
    result: Result = {}
    for name, line in {"plain": None, **METHODS}.items():
        for view in (False, True):
            torch.manual_seed(0)
            model = Halves()
            run = Run(line, model=model, find_unused_parameters=True, gradient_as_bucket_view=view)
            for used in ([model.one], [model.two] if dist.get_rank() else [model.one], [model.two]):
                model.used = used
                passes(run, "x", 1024.0 if line else 1.0)
            result[name, view] = gradients(model)
    return result


def fading_memories() -> Result:
    """A further pass with a method whose memory fades at each exchange, after passes that are none."""
    found: Result = {}
    for line in ("wgt(tau=0.01, momentum=0.9)", "wgt(tau=0.01, decay=0.5)"):
        run = Run(line)
        passes(run, "x none x zero x none n x")
        found[line] = refusal(lambda run=run: passes(run, "x"))
    return found


def skipped_passes() -> Result:
    """An overflow in one of two passes of a step, then a good step."""
    result: Result = {}
    for line in ("wgt(tau=1e-30, nonfinite='skip')", "none(nonfinite='skip')"):
        for clear in ("none", "zero"):
            for bad in (0, 1):
                for everywhere in (False, True):
                    run = Run(line)
                    if everywhere or dist.get_rank():
                        run.poison = {bad: ("middle.bias", math.inf)}
                    passes(run, "x x")
                    skipped = [run.state.last_step.skipped]
                    run.state.state_dict()  # puts back what was sent
                    kept = {name: each.clone() for name, each in run.state.feedback.residuals.items()}
                    given = {name: each.clone() for name, each in run.local.items()}
                    passes(run, f"{clear} x {clear} x")
                    skipped.append(run.state.last_step.skipped)
                    result[line, clear, bad, everywhere] = {
                        "skipped": skipped,
                        "totals": run.state.totals.state_dict(),
                        "kept": kept,
                        "given": given,
                    }
    return result


# What DDP reduces.


def frozen_between() -> Result:
    """Parameters frozen after DDP was made, before the state is; thawed later."""
    result: Result = {}
    for name, line in {"plain": None, **METHODS}.items():
        model = make_model()
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        model.first.requires_grad_(False)
        if line is not None:
            ddp.register_comm_hook(CompressionState(ddp, line), compressed_allgather)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model.first.requires_grad_(step > 1)
            optimizer.zero_grad()
            for part in range(2):
                loss_of(ddp, dist.get_rank(), 2 * step + part).backward()
            optimizer.step()
        result[name] = {each: parameter.detach().clone() for each, parameter in model.named_parameters()}
    return result


class WithOwn(nn.Module):
    """A net with a parameter of another shape on each worker, which DDP ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.own = make_model(), nn.Linear(5, 5 + dist.get_rank())
        self._ddp_params_and_buffers_to_ignore = ["own.weight", "own.bias"]

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs + self.own(outputs).mean()


def ignored() -> Result:
    result: Result = {}
    for name, line in {"plain": None, **METHODS}.items():
        model = WithOwn()
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.own.parameters():
                parameter.fill_(0.1)
        ddp = DistributedDataParallel(model)
        if line is not None:
            ddp.register_comm_hook(CompressionState(ddp, line), compressed_allgather)
        loss_of(ddp, dist.get_rank(), 0).backward()
        result[name] = gradients(model.net)
    return result


def stages() -> Result:
    """A state goes to a new DDP of the same model, in which other parameters are frozen."""
    result: Result = {}
    for line in ("wgt(tau=0.05)", "powersgd(start=2, min_rate=0.5)"):
        model = make_model()

        def stage(frozen: bool, saved: Result | None, line: str = line, model: Any = model) -> Result:
            model.first.requires_grad_(not frozen)
            ddp = DistributedDataParallel(model)
            state = CompressionState(ddp, line)
            if saved is not None:
                state.load_state_dict(saved)
            ddp.register_comm_hook(state, compressed_allgather)
            for step in range(3):
                model.zero_grad()
                loss_of(ddp, dist.get_rank(), step).backward()
            return state.state_dict()

        memory: Callable[[Result], Result] = lambda state: {  # noqa: E731
            name: each.clone()
            for name, each in (
                state["powersgd"]["errors"] if state["powersgd"] else state["residuals"]
            ).items()
        }
        first = stage(frozen=True, saved=None)
        few = memory(first)
        second = stage(frozen=False, saved=first)
        every = memory(second)
        third = stage(frozen=True, saved=second)
        result[line] = {"few": few, "all": every, "frozen": memory(third)}
    return result


# Complex parameters.


class Complex(nn.Module):
    """Complex and real parameters, one of them in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.matrix = nn.Parameter(torch.randn(6, 4, dtype=torch.complex64, generator=generator))
        self.real = nn.Parameter(torch.randn(4, generator=generator))
        image = torch.randn(2, 3, 2, 2, dtype=torch.complex64, generator=generator)
        self.image = nn.Parameter(image.to(memory_format=torch.channels_last))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = (inputs @ self.matrix) * self.real
        weights = torch.arange(24.0).view(2, 3, 2, 2)
        square: Tensor = (self.image.abs() ** 2 * weights).sum() + (self.image.imag * weights).sum()
        return (outputs.abs() ** 2).mean() + outputs.imag.mean() + square * inputs.real.mean()


def loss_of_complex(model: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    loss: Tensor = model(torch.randn(8, 6, dtype=torch.complex64, generator=generator))
    return loss


def complex_parameters() -> Result:
    result: Result = {}
    lines = {
        "plain": None,
        "none": "none",
        "wgt": "wgt(tau=1e-30)",
        "sum": METHODS["none, sum"],
        "fp16": "fp16",
    }
    for name, line in lines.items():
        for view in (False, True):
            run = Run(line, model=Complex(), gradient_as_bucket_view=view)
            if line is not None:
                run.state.observe_next_step()
            passes(run, "x x", 1024.0 if line and line != "fp16" else 1.0, loss_of_complex)
            result[name, view] = gradients(run.model)
            if name == "wgt":
                result["elements"] = {each.name: each.elements for each in run.state.last_step.layers}
                result["seen"] = sorted(run.state.statistics)
    run = Run("wgt(tau=0.5, reduction='sum')", model=Complex())
    for _ in range(3):
        passes(run, "none x", loss=loss_of_complex)
        for name, parameter in run.model.named_parameters():
            assert parameter.grad is not None
            run.applied[name] = run.applied[name] + parameter.grad
    saved = run.state.state_dict()
    again = Run("wgt(tau=0.5, reduction='sum')", model=Complex())
    again.state.load_state_dict(saved)
    result["kept"] = {name: each.clone() for name, each in saved["residuals"].items()}
    restored = again.state.state_dict()["residuals"]
    result["restored"] = {name: each.clone() for name, each in restored.items()}
    return result


# What is refused.


def refusal(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


class Table(nn.Module):
    """A table of which each pass uses some rows."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.table(rows)
        return outputs


class Functional(nn.Module):
    """An embedding that DDP does not take for one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.ones(5, 2))

    def forward(self, rows: Tensor) -> Tensor:
        return nn.functional.embedding(rows, self.rows, sparse=True)


@contextmanager
def optimize_ddp(mode: str) -> Iterator[None]:
    config = torch._dynamo.config
    before, config.optimize_ddp = config.optimize_ddp, mode  # type: ignore[assignment]
    yield
    config.optimize_ddp = before


def refused() -> Result:
    line = "wgt(0.01)"
    one, two = Run(line), Run(None)
    two.ddp.register_comm_hook(one.state, compressed_allgather)
    late = Run(line, model=Functional())
    sharded = fully_shard(make_model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with optimize_ddp("python_reducer"):
        in_python = Run(None)
    attempts: dict[str, Callable[[], Any]] = {
        "two models": lambda: passes(two, "x"),
        "late": lambda: late.ddp(torch.tensor([1])).sum().backward(),
        "fsdp": lambda: CompressionState(sharded, line),  # type: ignore[arg-type]
        "module": lambda: CompressionState(make_model(), line),  # type: ignore[arg-type]
        "none": lambda: CompressionState(None, line),  # type: ignore[arg-type]
        "python_reducer": lambda: CompressionState(in_python.ddp, line),
        "complex": lambda: Run("powersgd", model=Complex()),
    }
    for kind in (nn.Embedding, nn.EmbeddingBag):
        table = Table(kind(5, 2, sparse=True))
        attempts[kind.__name__] = lambda table=table: Run("none", model=table)
    for threads in (0, -1, True, 1.5, "2"):
        attempts[f"threads {threads!r}"] = lambda threads=threads: CompressionState(
            one.ddp, line, threads=threads
        )
    found = {name: refusal(attempt) for name, attempt in attempts.items()}
    found["late, noted"] = str(late.state.failure)
    found["frozen table"] = refusal(frozen_table)
    found["after all"] = refusal(lambda: passes(one, "none x"))
    return found


def frozen_table() -> None:
    """A sparse embedding that DDP does not reduce is no matter."""
    table = nn.Embedding(5, 2, sparse=True).requires_grad_(False)
    ddp = DistributedDataParallel(nn.Sequential(table, nn.Linear(2, 2)))
    ddp.register_comm_hook(CompressionState(ddp, "none"), compressed_allgather)
    ddp(torch.tensor([1])).sum().backward()


GROUPS: dict[str, list[Callable[..., Result]]] = {
    "passes-2": [
        several_passes,
        edited_between,
        parts_in_turn,
        fading_memories,
        skipped_passes,
        frozen_between,
        ignored,
        stages,
        complex_parameters,
        refused,
    ]
}

if __name__ == "__main__":
    main(GROUPS)
