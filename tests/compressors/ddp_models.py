"""What people do with models: compile them, change their memory format, copy them, use Adam; see ddp.py."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from ddp import Run, make_model, refusal, scenario
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from taugrad.compressors.optimizer_steps import SparseUnderAdam, StepTracker


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def partly_compiled(model: Any) -> nn.Module:
    model.middle = compiled(model.middle)
    return model  # type: ignore[no-any-return]


@scenario(2)
def patterns_match_a_compiled_model_as_they_do_the_model() -> None:
    for wrapped in (lambda model: model, compiled, partly_compiled):
        for method in (
            "wgt(1e9, exempt=exempt(names=['middle.*']))",
            "wgt(layers(1e9, patterns={'middle.*': 1e-30}))",
        ):
            run = Run(method, model=wrapped(make_model())).steps(1)
            sent = sorted(layer.name for layer in run.state.last_step.layers if layer.sent)
            assert sent == ["middle.bias", "middle.weight"]
        attempt = partial(
            Run, "wgt(1.0, exempt=exempt(names=['head.*', 'nrom*']))", model=wrapped(make_model())
        )
        assert refusal(attempt) == (
            "ValueError: exempt.names: 'nrom*' matches no parameter of the model, which has head.weight, "
            "head.bias, middle.weight, middle.bias, first.weight, first.bias"
        )


# Weights that lie otherwise in memory.

TAU, STEPS, CHANGE = 0.5, 7, 4
MOMENTS: dict[str, dict[str, str]] = {
    "never": {},
    "before": {"made": "last"},
    "after the state": {"state": "last"},
    "after a step": {"1": "last"},
    "later": {"3": "last"},
    "back": {"made": "last", "1": "rows"},
    "loaded": {"loaded": "last"},
    "loaded back": {"made": "last", "loaded": "rows"},
}
"""When weights lie otherwise, and how."""


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


def given(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(p.shape, generator=generator) for p in Given().parameters()]


def expected() -> tuple[list[Tensor], list[Tensor]]:
    """Weights and this worker's residuals, by the rule itself."""
    ranks = range(dist.get_world_size())
    weights = [torch.zeros(p.shape) for p in Given().parameters()]
    residuals = [[torch.zeros_like(weight) for weight in weights] for _ in ranks]
    for step in range(STEPS):
        for rank in ranks:
            for i, gradient in enumerate(given(rank, step)):
                whole = residuals[rank][i] + gradient
                sent = torch.where(whole.abs() >= TAU, whole, 0)
                residuals[rank][i] = whole - sent
                weights[i] = weights[i] - sent / len(ranks)
    return weights, residuals[dist.get_rank()]


def trained(moments: dict[str, str], momentum: str) -> tuple[list[Tensor], dict[str, Any]]:
    """The weights and the state of a run whose weights lie otherwise from some moment on."""
    method, model = f"wgt({TAU}{momentum})", Given()

    def at(moment: str) -> None:
        if moment in moments:
            model.lie(moments[moment])

    at("made")
    run = Run(method, model=model)
    at("state")
    for step in range(STEPS):
        at(str(step))
        if step == CHANGE and "loaded" in moments:
            saved = copy.deepcopy(run.state.state_dict())
            at("loaded")
            run = Run(method, model=model)
            run.state.load_state_dict(saved)
        model.zero_grad()
        run.ddp(given(dist.get_rank(), step)).backward()
        for parameter in model.parameters():
            parameter.data -= parameter.grad
    return [parameter.detach().contiguous() for parameter in model.parameters()], run.state.state_dict()


@scenario(2, values=MOMENTS)
def no_number_depends_on_how_weights_lie_in_memory(when: str) -> None:
    weights, residuals = expected()
    actual, state = trained(MOMENTS[when], "")
    named = dict(Given().named_parameters())
    kept = [state["residuals"][name] for name in named]
    for one, due in zip([*actual, *kept], [*weights, *residuals], strict=True):
        assert one.shape == due.shape
        torch.testing.assert_close(one, due, rtol=1e-5, atol=1e-6)
    if when.startswith("loaded"):
        never, moving = (trained(MOMENTS[moment], ", momentum=0.5") for moment in ("never", when))
        assert any(tensor.any() for tensor in never[1]["velocities"].values())
        assert all(map(torch.equal, moving[0], never[0]))
        for part in ("residuals", "velocities"):
            assert all(torch.equal(moving[1][part][name], tensor) for name, tensor in never[1][part].items())


# Copies.

COPIES: dict[str, Callable[[Run], Any]] = {
    "deepcopy": lambda run: copy.deepcopy(run.state),
    "pickle": lambda run: pickle.loads(pickle.dumps(run.state)),
    "model": lambda run: copy.deepcopy(run.ddp)._comm_hooks[0][1],
    "averaged": lambda run: AveragedModel(run.ddp).module._comm_hooks[0][1],
    "save": lambda run: torch.save(run.ddp, io.BytesIO()),
    "copy of a copy": lambda run: copy.deepcopy(copy.deepcopy(run.state)),
}


@scenario(2, values=["wgt(0.02, momentum=0.5)", "powersgd(start=2)", "none"])
def a_copy_shares_nothing_and_training_goes_on_with_the_same_bits(method: str) -> None:
    never = Run(method, process_group=None).steps(5).digests
    for name, copied in COPIES.items():
        run = Run(method, process_group=None).steps(3)
        made = copied(run)
        copies, now = (
            {} if made is None else made.state_dict()["residuals"],
            run.state.state_dict()["residuals"],
        )
        kept = {n: tensor.clone() for n, tensor in copies.items()}
        assert all(torch.equal(tensor, now[n]) for n, tensor in kept.items())
        assert run.steps(2).digests == never
        if name == "save":
            continue
        assert len(kept) == (6 if method.startswith("wgt") else 0)
        assert all(torch.equal(tensor, copies[n]) for n, tensor in kept.items())
        refused = "CompressionError: a copy of a CompressionState has no process group"
        assert refused in refusal(lambda made=made: made.synchronize(None))
        other = Run(made.method)
        other.state.load_state_dict(made.state_dict())
        assert other.state.totals.steps == 3


# Adam.


class Mine(torch.optim.AdamW):
    """Nothing in its own name tells."""


Optimizers = Callable[[nn.Module], list[torch.optim.Optimizer]]


def one(kind: Any) -> Optimizers:
    return lambda model: [kind(model.parameters(), lr=1e-4)]


def two(model: nn.Module) -> list[torch.optim.Optimizer]:
    first, *others = model.parameters()
    return [torch.optim.SGD([first], lr=1e-4), torch.optim.NAdam(others, lr=1e-4)]


def for_another(model: nn.Module) -> list[torch.optim.Optimizer]:
    other = nn.Linear(2, 2)
    other.weight.grad = torch.ones(2, 2)
    return [torch.optim.AdamW(other.parameters(), lr=1e-4), torch.optim.SGD(model.parameters(), lr=1e-4)]


ADAMS: dict[str, tuple[str, Optimizers, bool]] = {
    "wgt": ("wgt(0.02)", one(torch.optim.AdamW), True),
    "own class": ("strom(0.02)", one(Mine), True),
    "two optimizers": ("bgt(0.02)", two, True),
    "sgd": ("wgt(0.02)", one(torch.optim.SGD), False),
    "linear": ("linear(8)", one(torch.optim.AdamW), False),
    "everything": ("wgt(1e-30)", one(torch.optim.AdamW), False),
    "another model's": ("wgt(0.02)", for_another, False),
    "a second model": ("wgt(0.02)", one(torch.optim.AdamW), False),
}
"""Method, optimizers, and whether there is a warning."""


@scenario(2, values=ADAMS)
def adam_with_a_sparse_method_is_warned_of_once_and_nobody_else(case: str) -> None:
    method, make, warns = ADAMS[case]
    StepTracker.warned = case == "a second model"
    run = Run(method)
    chosen = make(run.model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            run.optimizer.zero_grad()
            run.ddp(torch.randn(4, 6)).square().mean().backward()
            for optimizer in chosen:
                optimizer.step()
    said = [str(warning.message) for warning in caught if warning.category is SparseUnderAdam]
    assert len(said) == warns
    for text in said:
        assert "linear(8)" in text
        assert "docs/how-to/own-script.md" in text
