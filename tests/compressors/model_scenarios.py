"""What the workers of test_hook_models.py run; used as scenarios.py is."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from scenarios import Result, Run, main, make_model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.optim.swa_utils import AveragedModel

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.adam import OptimizerWatch, SparseUnderAdam

PATTERNS = {
    "exempt": {"kind": "wgt", "tau": 1e9, "exempt": {"names": ["middle.*"]}},
    "layers": {"kind": "wgt", "tau": {"kind": "layers", "default": 1e9, "patterns": {"middle.*": 1e-30}}},
}
TAU, STEPS, CHANGE = 0.5, 7, 4


def compiled() -> nn.Module:
    return torch.compile(make_model(), backend="eager")  # type: ignore[return-value]


def partly_compiled() -> nn.Module:
    model = make_model()
    model.middle = torch.compile(model.middle, backend="eager")  # type: ignore[assignment]
    return model


def names_and_patterns() -> Result:
    result: Result = {}
    for how, made in {"plain": make_model, "compiled": compiled, "partly": partly_compiled}.items():
        for name, method in PATTERNS.items():
            run = Run(method, model=made())
            run.step()
            result[how, name] = sorted(layer.name for layer in run.state.last_step.layers if layer.sent)
    for kind in ("plain", "compiled"):
        try:
            CompressionState(
                DistributedDataParallel(make_model() if kind == "plain" else compiled()),
                {"kind": "wgt", "tau": 1.0, "exempt": {"names": ["head.*", "nrom*"]}},
            )
        except ValueError as error:
            result[kind, "refused"] = str(error)
    first = Run("wgt(0.02)").steps(3)
    saved, weights = first.state.state_dict(), copy.deepcopy(first.model)
    for how, model in {
        "plain": weights,
        "compiled": torch.compile(copy.deepcopy(weights), backend="eager"),
    }.items():
        again = Run("wgt(0.02)", model=model)  # type: ignore[arg-type]
        again.state.load_state_dict(saved)
        again.at = 3
        result[how, "resumed"] = again.steps(3).digests
    return result


class Given(nn.Module):
    """Its gradients are what it is given, bit for bit, however its weights lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(2, 3, 2, 2))
        self.deep = nn.Parameter(torch.zeros(2, 3, 2, 1, 2))
        self.turned = nn.Parameter(torch.zeros(5, 3).t())
        self.gaps = nn.Parameter(torch.zeros(6, 4)[::2].t())

    def forward(self, gradients: list[Tensor]) -> Tensor:
        return sum(
            ((p * g).sum() for p, g in zip(self.parameters(), gradients, strict=True)), torch.zeros(())
        )

    def lie(self, how: str) -> None:
        """Changes how the weights lie, as `Module.to(memory_format=...)` does."""
        last = how == "last"
        for parameter, memory in (
            (self.flat, torch.channels_last if last else torch.contiguous_format),
            (self.deep, torch.channels_last_3d if last else torch.contiguous_format),
        ):
            parameter.data = parameter.data.to(memory_format=memory)
        self.turned.data = self.turned.data.t().contiguous().t() if last else self.turned.data.contiguous()


def given(model: Given, rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(p.shape, generator=generator) for p in model.parameters()]


def expected() -> tuple[list[Tensor], list[list[Tensor]]]:
    """Weights, and residuals by rank, by the rule itself."""
    model, ranks = Given(), range(dist.get_world_size())
    weights = [torch.zeros(p.shape) for p in model.parameters()]
    residuals = [[torch.zeros(p.shape) for p in model.parameters()] for _ in ranks]
    for step in range(STEPS):
        means = [torch.zeros(p.shape) for p in model.parameters()]
        for rank in ranks:
            for i, gradient in enumerate(given(model, rank, step)):
                whole = residuals[rank][i] + gradient
                sent = torch.where(whole.abs() >= TAU, whole, 0)
                residuals[rank][i] = whole - sent
                means[i] += sent
        weights = [weight - mean / len(ranks) for weight, mean in zip(weights, means, strict=True)]
    return weights, residuals


def memory_orders() -> Result:
    """Runs whose weights lie otherwise in memory from some moment on; their numbers are the same."""
    moments: dict[str, dict[str, str]] = {
        "never": {},
        "before": {"made": "last"},
        "after the state": {"state": "last"},
        "after a step": {"1": "last"},
        "later": {"3": "last"},
        "back": {"made": "last", "1": "rows"},
        "loaded": {"loaded": "last"},
        "loaded back": {"made": "last", "loaded": "rows"},
    }
    result: Result = {}
    weights, residuals = expected()
    for name, changes in moments.items():
        for momentum in ("", ", momentum=0.5") if name.startswith(("never", "loaded")) else ("",):
            method = f"wgt({TAU}{momentum})"
            model = Given()

            def at(moment: str, model: Given = model, changes: dict[str, str] = changes) -> None:
                if moment in changes:
                    model.lie(changes[moment])

            def new(model: Given = model, method: str = method) -> tuple[Any, ...]:
                ddp = DistributedDataParallel(model)
                state = CompressionState(ddp, method)
                ddp.register_comm_hook(state, compressed_allgather)
                return ddp, state

            at("made")
            ddp, state = new()
            at("state")
            for step in range(STEPS):
                at(str(step))
                if step == CHANGE:
                    saved = copy.deepcopy(state.state_dict())
                    if "loaded" in changes:
                        at("loaded")
                        ddp, state = new()
                        state.load_state_dict(saved)
                model.zero_grad()
                ddp(given(model, dist.get_rank(), step)).backward()
                for parameter in model.parameters():
                    parameter.data -= parameter.grad
            state = state.state_dict()
            result[name, momentum] = {
                "weights": [each.detach().contiguous() for each in model.parameters()],
                "residuals": [each.clone() for each in state["residuals"].values()],
                "velocities": [each.clone() for each in state["velocities"].values()],
                "names": list(state["residuals"]),
            }
    order = [[name for name, _ in Given().named_parameters()].index(each) for each in state["residuals"]]
    result["expected"] = {"weights": weights, "residuals": [residuals[dist.get_rank()][i] for i in order]}
    return result


def copies() -> Result:
    ways: dict[str, Callable[[Run], Any]] = {
        "never": lambda run: None,
        "deepcopy": lambda run: copy.deepcopy(run.state),
        "pickle": lambda run: pickle.loads(pickle.dumps(run.state)),
        "model": lambda run: copy.deepcopy(run.ddp)._comm_hooks[0][1],
        "averaged": lambda run: AveragedModel(run.ddp).module._comm_hooks[0][1],
        "save": lambda run: torch.save(run.ddp, io.BytesIO()),
        "copy of a copy": lambda run: copy.deepcopy(copy.deepcopy(run.state)),
    }
    result: Result = {}
    for method in ("wgt(0.02, momentum=0.5)", "powersgd(start=2)", "none"):
        for name, way in ways.items():
            run = Run(method, process_group=None)
            run.steps(3)
            made = way(run)
            kept = {} if made is None else {n: each.clone() for n, each in made.feedback.residuals.items()}
            same = all(torch.equal(each, run.state.feedback.residuals[n]) for n, each in kept.items())
            run.steps(2)
            found = {"digests": run.digests, "same": same, "kept": len(kept)}
            if made is not None:
                found["apart"] = all(
                    torch.equal(each, made.feedback.residuals[n]) for n, each in kept.items()
                )
                found["steps"] = made.totals.steps
                for refused in (lambda: made.synchronize(None), lambda: made.load_state_dict({})):  # noqa: B023
                    try:
                        refused()
                    except Exception as error:
                        found["refused"] = f"{type(error).__name__}: {error}"
                other = Run(method)
                other.state.load_state_dict(made.state_dict())
                found["loaded"] = other.state.totals.steps
            result[method, name] = found
    return result


class MyAdamW(torch.optim.AdamW):
    pass


class Mine(MyAdamW):
    """Nothing in its own name tells."""


def adam() -> Result:
    def one(kind: type[torch.optim.Optimizer]) -> Callable[[nn.Module], list[torch.optim.Optimizer]]:
        return lambda model: [kind(model.parameters(), lr=1e-4)]  # type: ignore[call-arg]

    def two(model: nn.Module) -> list[torch.optim.Optimizer]:
        first, *others = model.parameters()
        return [torch.optim.SGD([first], lr=1e-4), torch.optim.NAdam(others, lr=1e-4)]

    def others(model: nn.Module) -> list[torch.optim.Optimizer]:
        other = nn.Linear(2, 2)
        other.weight.grad = torch.ones(2, 2)
        return [torch.optim.AdamW(other.parameters(), lr=1e-4), torch.optim.SGD(model.parameters(), lr=1e-4)]

    cases: dict[str, tuple[str, Callable[[nn.Module], list[torch.optim.Optimizer]]]] = {
        "wgt": ("wgt(0.02)", one(torch.optim.AdamW)),
        "topk": ("topk(0.01) | linear(4)", one(torch.optim.RAdam)),
        "chunked_topk": ("chunked_topk(4, chunk=64, decay=0.9)", one(torch.optim.Adamax)),
        "own class": ("strom(0.02)", one(Mine)),
        "two optimizers": ("bgt(0.02)", two),
        "sgd": ("wgt(0.02)", one(torch.optim.SGD)),
        "linear": ("linear(8)", one(torch.optim.AdamW)),
        "none": ("none", one(torch.optim.AdamW)),
        "everything": ("wgt(1e-30)", one(torch.optim.AdamW)),
        "another model's": ("wgt(0.02)", others),
    }
    result: Result = {}
    for name, (method, make) in cases.items():
        OptimizerWatch.warned = False
        before = len(optimizers._global_optimizer_pre_hooks)
        run = Run(method)
        chosen = make(run.model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4):
                run.backward(run.ddp(torch.randn(4, 6)).square().mean())
                for each in chosen:
                    each.step()
        result[name] = {
            "said": [str(each.message) for each in caught if each.category is SparseUnderAdam],
            "hooks": len(optimizers._global_optimizer_pre_hooks) - before,
        }
    again = Run("wgt(0.02)")
    optimizer = torch.optim.AdamW(again.model.parameters())
    OptimizerWatch.warned = True
    before = len(optimizers._global_optimizer_pre_hooks)
    again.backward(again.ddp(torch.randn(4, 6)).sum())
    optimizer.step()
    result["a second model"] = {"said": [], "hooks": len(optimizers._global_optimizer_pre_hooks) - before}
    return result


GROUPS = {"models-2": [names_and_patterns, memory_orders, copies, adam]}

if __name__ == "__main__":
    main(GROUPS)
