"""Several backward passes a step, what DDP reduces of a model, and what is refused; see ddp.py.

The right gradients are those of DDP without a hook; every method here sends everything.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from ddp import (
    ELEMENTS,
    TINY_BUCKETS,
    Network,
    Run,
    assert_close,
    everyone,
    gradients,
    loss_of,
    make_model,
    refusal,
    scenario,
)
from ddp_models import Given, given
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compress_gradients, compression_hook

SEQUENCES = {
    "x x": 1,
    "x x x": 1,
    "n x x": 1,
    "x n x": 1,
    "x none x x": 2,
    "x zero x x": 2,
    "x late-none x": 2,
    "x late-zero x": 2,
    "x n zero x": 2,
    "x n none x x": 2,
    "x step x step": 2,
    "x x step x step none x": 3,
    "x step n x step": 2,
    "x step zero x step x x step": 3,
}
"""Backward passes that exchange (x) or do not (n), steps of the optimizer, and what clears gradients between
them: before the forward pass, or late, after it. With how many steps that makes: one that steps ends one."""
METHODS = {
    "none": 1.0,
    "none(reduction='sum')": 2.0,
    "wgt(1e-30)": 1.0,
    "wgt(1e-30, reduction='sum')": 2.0,
    "powersgd(start=100)": 1.0,
    "fp16(exempt={'smaller_than': 10000})": 1.0,
}
"""And what of DDP's mean their result is with two workers."""
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True, "bucket_cap_mb": TINY_BUCKETS},
    "static": {"static_graph": True, "gradient_as_bucket_view": True},
}
CASES = [
    *((sequence, option, "none", 1.0) for sequence in SEQUENCES for option in ("default", "view")),
    *((sequence, option, "wgt(1e-30)", 1024.0) for sequence in SEQUENCES for option in ("default", "view")),
    *(("x x", option, method, 1024.0) for option in OPTIONS for method in METHODS),
    *(("x n x", "unused", method, 1024.0) for method in METHODS),
]
"""Sequence, option, method and the loss's scale."""


OTHER = torch.optim.SGD(nn.Linear(2, 2).parameters())


def run_of(method: str, **options: Any) -> Run:
    """With 16 or 8 bits an element, by collectives."""
    return Run(method, pattern="collective" if method.startswith("fp") else "allgather", **options)


def passes(run: Run, sequence: str, scale: float = 1.0) -> dict[str, Any]:
    """One optimizer step's passes, each with a batch of its own; the gradients at the end."""
    if run.state is not None:
        run.state.gradient_scale = 1 / scale
    late: str | None = None
    for part in sequence.split():
        if part in ("x", "n"):
            with run.ddp.no_sync() if part == "n" else nullcontext():
                loss = scale * run.loss(run.ddp, dist.get_rank(), run.at)
                if late is not None:
                    run.optimizer.zero_grad(set_to_none=late == "none")
                    late = None
                loss.backward()
            run.at += 1
        elif part == "step":
            run.optimizer.step()
            OTHER.step()  # of another model: no matter
        elif part.startswith("late-"):
            late = part.removeprefix("late-")
        elif part == "edit":
            for parameter in run.model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(1 + dist.get_rank())
        else:
            run.optimizer.zero_grad(set_to_none=part == "none")
    return gradients(run.model)


@scenario(2, values=CASES)
def only_what_is_new_in_a_pass_is_scaled_and_exchanged(case: tuple[str, str, str, float]) -> None:
    sequence, option, method, scale = case
    plain_run, run = Run(None, **OPTIONS[option]), run_of(method, **OPTIONS[option])
    plain = passes(plain_run, sequence)
    result = passes(run, sequence, scale)
    assert_close(result, plain, METHODS[method])
    if "step" in sequence and METHODS[method] == 1:
        assert_close(dict(run.model.named_parameters()), dict(plain_run.model.named_parameters()))
    if (method, scale) == ("none", 1.0):
        assert all(torch.equal(result[name], tensor) for name, tensor in plain.items())
    totals = run.state.totals
    assert totals.steps == SEQUENCES[sequence]
    assert totals.elements == totals.sent == ELEMENTS * sequence.split().count("x")


@scenario(2)
def what_an_earlier_pass_exchanged_is_found_however_weights_lie_in_memory() -> None:
    for how in ("rows", "last"):
        results = []
        for line, scale in ((None, 1.0), ("wgt(1e-30)", 1024.0)):
            model = Given()
            model.lie(how)
            run = Run(line, model=model, loss=lambda model, rank, step: model(given(rank, step)))
            results.append(passes(run, "x x", scale))
        assert_close(*results)


class TwoTypes(Network):
    """One bucket for each type in a first step, whatever its size."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(5, 5).double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(super().forward(inputs).double())
        return outputs


@scenario(2)
def the_first_pass_of_a_static_graph_is_one_pass_however_many_buckets_it_has() -> None:
    results = []
    for line in (None, "wgt(1e-30)"):
        torch.manual_seed(0)
        run = Run(line, model=TwoTypes(), static_graph=True)
        results.append(passes(run, "x x"))
    assert_close(*results)
    assert run.state.totals.steps == 1


@scenario(2)
def replicas_stay_equal_when_workers_change_gradients_between_passes() -> None:
    plain = passes(Run(None), "x edit x")
    assert_close(passes(Run("none"), "x edit x", 1024.0), everyone(plain)[0])


class Halves(nn.Module):
    """Two parts, of which a pass uses some."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.never = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5)
        self.used = [self.one]

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack([part(inputs) for part in self.used]).sum(0)


@scenario(2)
def a_parameter_may_have_a_gradient_of_some_passes_only_on_some_workers_only() -> None:
    for view in (False, True):
        results: dict[str | None, dict[str, Any]] = {}
        for line in (None, *METHODS):
            model = Halves()
            run = Run(line, model=model, find_unused_parameters=True, gradient_as_bucket_view=view)
            for used in ([model.one], [model.two] if dist.get_rank() else [model.one], [model.two]):
                model.used = used
                results[line] = passes(run, "x", 1024.0 if line else 1.0)
        assert results[None]["never.weight"] is None
        for line, times in METHODS.items():
            assert_close(results[line], results[None], times)


@scenario(2, values=["allgather", "sharded"])
def each_pass_of_a_step_rounds_by_its_own_random_numbers(pattern: Any) -> None:
    """Passes that drew the same numbers would err alike, and a step's error would not average out."""
    run = Run("terngrad", pattern=pattern)
    first = {name: gradient.clone() for name, gradient in passes(run, "x").items()}
    run.at -= 1  # the same batch
    both = passes(run, "x")
    assert run.state.totals.steps == 1
    assert any(not torch.equal(both[name] - first[name], first[name]) for name in first)


@scenario(2)
def a_memory_that_fades_refuses_a_second_exchange() -> None:
    for field, line in {"momentum": "wgt(0.01, momentum=0.9)", "decay": "wgt(0.01, decay=0.5)"}.items():
        run = Run(line)
        passes(run, "x none x zero x none n x step x step n x step none x")
        assert refusal(lambda run=run: passes(run, "x")) == (
            f"CompressionError: a second exchange in one step would apply the method's {field} twice: run "
            "all backward passes but the last in ddp.no_sync(), and no Join"
        )


@scenario(
    2, values=["wgt(1e-30, nonfinite='skip')", "none(nonfinite='skip')", "fp8(decay=1, nonfinite='skip')"]
)
def a_skipped_pass_counts_for_its_step_and_no_other_and_nothing_of_it_is_lost(line: str) -> None:
    """An overflow in one of two passes of a step, then a good step."""
    for clear, bad, everywhere in (
        (c, b, e) for c in ("none", "zero") for b in (0, 1) for e in (False, True)
    ):
        run = run_of(line)
        if everywhere or dist.get_rank():
            run.poison = {bad: ("middle.bias", math.inf)}
        passes(run, "x x")
        assert run.state.last_step.skipped
        if not line.startswith("none"):
            assert_close(
                run.residuals, {name: tensor.float().flatten() for name, tensor in run.local.items()}
            )
        else:
            run.state.state_dict()
        passes(run, f"{clear} x {clear} x")
        assert not run.state.last_step.skipped
        assert (run.state.totals.steps, run.state.totals.skipped_steps) == (3, 1)


# What DDP reduces.


@scenario(2)
def parameters_may_be_frozen_before_the_state_is_made_and_thawed_later() -> None:
    results = {}
    for line in (None, *(line for line, times in METHODS.items() if times == 1)):
        model = make_model()
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        model.first.requires_grad_(False)
        if line is not None:
            ddp.register_comm_hook(CompressionState(ddp, line), compression_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model.first.requires_grad_(step > 1)
            optimizer.zero_grad()
            for part in range(2):
                loss_of(ddp, dist.get_rank(), 2 * step + part).backward()
            optimizer.step()
        results[line] = dict(model.state_dict())
        assert_close(results[line], results[None])


class WithOwn(nn.Module):
    """A net with a parameter of another shape on each worker, which DDP ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.local_head = make_model(), nn.Linear(5, 5 + dist.get_rank())
        self._ddp_params_and_buffers_to_ignore = ["local_head.weight", "local_head.bias"]
        with torch.no_grad():
            for parameter in self.local_head.parameters():
                parameter.fill_(0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs + self.local_head(outputs).mean()


@scenario(2)
def parameters_that_ddp_ignores_may_differ() -> None:
    plain = Run(None, model=WithOwn())
    plain.backward()
    for line, times in METHODS.items():
        run = Run(line, model=WithOwn())
        run.backward()
        assert_close(gradients(run.model.net), gradients(plain.model.net), times)  # type: ignore[arg-type]


@scenario(2, values=["wgt(0.05)", "powersgd(start=2, min_rate=0.5)"])
def a_state_keeps_what_belongs_to_frozen_parameters(line: str) -> None:
    """It goes to a new DDP of the same model, in which other parameters are frozen."""
    model, saved, kept = make_model(), None, []
    for frozen in (True, False, True):
        model.first.requires_grad_(not frozen)
        run = Run(line, model=model, process_group=None)
        if saved is not None:
            run.state.load_state_dict(saved)
        for _ in range(3):
            run.backward()
            run.at += 1
        saved = run.state.state_dict()
        memory = saved["powersgd"]["errors"] if saved["powersgd"] else saved["residuals"]
        kept.append({name: tensor.clone() for name, tensor in memory.items()})
    few, every, again = kept
    assert not any(name.startswith("first") for name in few)
    for name in ("first.weight", "first.bias"):
        assert every[name].any()
        assert torch.equal(again[name], every[name])
    assert not torch.equal(again["head.weight"], every["head.weight"])


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


def complex_run(line: str | None, **options: Any) -> Run:
    return Run(line, model=Complex(), loss=loss_of_complex, **options)


@scenario(2)
def complex_parameters_are_two_real_numbers_each() -> None:
    for view in (False, True):
        plain = passes(complex_run(None, gradient_as_bucket_view=view), "x x")
        assert all(plain[name].imag.any() for name in ("matrix", "image"))
        for line in ("none", "wgt(1e-30)", "none(reduction='sum')"):
            run = complex_run(line, gradient_as_bucket_view=view)
            run.state.observe_next_step()
            assert_close(passes(run, "x x", 1024.0), plain, METHODS[line])
    run = complex_run("wgt(0.5, reduction='sum')")
    run.state.observe_next_step()
    passes(run, "x")
    assert {layer.name: layer.elements for layer in run.state.last_step.layers} == {
        "matrix": 48,
        "image": 48,
        "real": 4,
    }
    assert sorted(run.state.statistics) == ["image", "matrix", "real"]
    saved = run.state.state_dict()
    assert any(tensor.any() for tensor in saved["residuals"].values())
    again = complex_run("wgt(0.5, reduction='sum')")
    again.state.load_state_dict(saved)
    assert_close(again.state.state_dict()["residuals"], saved["residuals"])


# What is refused.


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


def frozen_table() -> None:
    """A sparse embedding that DDP does not reduce is no matter."""
    table = nn.Embedding(5, 2, sparse=True).requires_grad_(False)
    ddp = DistributedDataParallel(nn.Sequential(table, nn.Linear(2, 2)))
    ddp.register_comm_hook(CompressionState(ddp, "none"), compression_hook)
    ddp(torch.tensor([1])).sum().backward()


@scenario(2)
def what_cannot_work_is_refused_in_one_sentence_on_every_worker() -> None:
    line, stateless = "wgt(0.01)", "must be, or hold, a model in torch.nn.parallel.Distributed"
    one, two = Run(line), Run(None)
    two.ddp.register_comm_hook(one.state, compression_hook)
    late = Run(line, model=Functional())
    sharded: Any = fully_shard(make_model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    unwrapped: Any = make_model()
    with optimize_ddp("python_reducer"):
        in_python = Run(None)
    sparse = "ValueError: DDP expects a sparse gradient of 0.weight"
    both, scaler = nn.ModuleList([one.ddp, two.ddp]), torch.amp.GradScaler("cpu")
    attempts: list[tuple[Callable[[], Any], str]] = [
        (lambda: passes(two, "x"), "CompressionError: a bucket of another model"),
        (
            lambda: late.ddp(torch.tensor([1])).sum().backward(),
            "CompressionError: the gradient of 'rows' is sparse",
        ),
        (lambda: CompressionState(sharded, line), f"TypeError: ddp is of FSDPNetwork: it {stateless}"),
        (lambda: CompressionState(unwrapped, line), f"TypeError: ddp is of Network: it {stateless}"),
        (lambda: CompressionState(None, line), f"TypeError: ddp is None: it {stateless}"),  # type: ignore[arg-type]
        (lambda: compress_gradients(3, line), f"TypeError: ddp is of int: it {stateless}"),
        (lambda: compress_gradients(both, line), "ValueError: ModuleList holds 2 DDP models: make a state"),
        (
            lambda: compress_gradients(two.ddp, "powersgd(2)", scaler=scaler),
            "ValueError: powersgd with a scaler: ",
        ),
        (
            lambda: CompressionState(in_python.ddp, line),
            'ValueError: torch._dynamo.config.optimize_ddp = "python_reducer"',
        ),
        (
            lambda: Run("powersgd", model=Complex()),
            "ValueError: powersgd cannot take the complex parameter 'matrix'",
        ),
        (lambda: Run("none", model=nn.Sequential(nn.Embedding(5, 2, sparse=True))), sparse),
        (lambda: Run("none", model=nn.Sequential(nn.EmbeddingBag(5, 2, sparse=True))), sparse),
        *(
            (
                lambda threads=threads: CompressionState(one.ddp, line, threads=threads),
                f"ValueError: threads = {threads!r}: must be a whole number of at least 1",
            )
            for threads in (0, -1, True, 1.5, "2")
        ),
        (frozen_table, "taken"),
        (lambda: passes(one, "none x"), "taken"),
    ]
    for attempt, words in attempts:
        said = refusal(attempt)
        assert said.startswith(words), said
        assert "\n" not in said
    assert str(late.state.failure).startswith("the gradient of 'rows' is sparse")
