"""Which backward passes make a step; see ddp.py.

What a script clears, when, and to what, must not change what it trains.
"""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from ddp import assert_close, assert_same, everyone, scenario
from ddp_passes import Halves
from ddp_replicas import islands
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import compress_gradients, compress_replicas

CLEARING = [(when, to_none) for when in ("before", "after") for to_none in (True, False)]
"""When in its turn an optimizer clears gradients, and whether to None."""
METHODS = (
    "wgt(1e-30)",
    "strom(density(0.1)) | golomb_rice",
    "wgt(schedule({0: 0.001, 4: 0.01}))",
    "strom(density(0.1), momentum=0.9) | golomb_rice",
    "none(reduction='sum')",
)
TURNS = 8
Players = dict[str, torch.optim.Optimizer]


def halves(sharded: bool = False) -> tuple[Halves, nn.Module]:
    model = Halves()
    del model.never
    if not sharded:
        return model, DistributedDataParallel(model, find_unused_parameters=True)
    for part in (model.one, model.two):
        fully_shard(part, mesh=islands()["shard"])
    return model, fully_shard(model, mesh=islands()["shard"])  # type: ignore[call-overload]


def turn(model: nn.Module, halves: Halves, seed: int, *names: str, scale: Any = 1.0) -> None:
    """A backward pass through one player, or both."""
    halves.used = [getattr(halves, name) for name in names]
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * seed + dist.get_rank()))
    (model(inputs).square().mean() * scale).backward()


def local(model: nn.Module) -> dict[str, Tensor]:
    """Copies of this worker's weights, or shards."""
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: (p.to_local() if isinstance(p, DTensor) else p).clone() for name, p in named.items()}


class Turns:
    """Two optimizers in turn, each with a pass of its own and only its own gradients to clear."""

    def __init__(
        self, method: str | None, clearing: tuple[str, bool], sharded: bool = False, **options: Any
    ) -> None:
        self.plain, self.model = halves(sharded)
        self.clearing = clearing
        compress: Callable[..., Any] = compress_gradients
        if sharded:
            compress = lambda model, method: compress_replicas(model, islands()["replicate"], method)  # noqa: E731
        self.state: Any = None if method is None else compress(self.model, method)
        self.optimizers = {
            name: torch.optim.SGD(getattr(self.plain, name).parameters(), **options)
            for name in ("one", "two")
        }
        self.sums = Sums(self.plain)

    def run(self, index: int, spoiled: int = -1) -> bool:
        """A turn, in which the gradients of rank 1 may overflow; whether it was skipped."""
        name = ("one", "two")[index % 2]
        when, to_none = self.clearing
        if when == "before":
            self.optimizers[name].zero_grad(set_to_none=to_none)
        overflows = index == spoiled and dist.get_rank() == 1
        turn(self.model, self.plain, index, name, scale=math.inf if overflows else 1.0)
        skipped: bool = self.state is not None and self.state.last_step.skipped
        if not skipped:
            self.optimizers[name].step()
        if when == "after":
            self.optimizers[name].zero_grad(set_to_none=to_none)
        return skipped


class Sums:
    """The sums that tell whether anything was lost, with a learning rate of 1."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.first = model, local(model)
        self.given = {name: torch.zeros_like(tensor) for name, tensor in self.first.items()}
        self.scale = 1.0
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: self._note(name, gradient))

    def _note(self, name: str, gradient: Tensor) -> None:
        if not isinstance(gradient, DTensor):
            self.given[name] += torch.where(torch.isfinite(gradient), gradient, 0) / self.scale

    def assert_nothing_lost(self, state: Any, part: str = "") -> None:
        state.state_dict()  # puts back what a skipped step has sent
        kept = state.feedback.residuals
        sums = {name: gradient - kept[name].view_as(gradient) for name, gradient in self.given.items()}
        if (back := state.feedback.sums) is not None:  # of means of two workers
            for name, residual in back.residuals.items():
                piece = back.slices[name]
                sums[name].view(-1)[piece.start : piece.stop] -= 2 * residual
        sums = {name: sum(of[name] for of in everyone(sums)) / 2 for name in sums if name.startswith(part)}
        now = local(self.model)
        assert_close({name: self.first[name] - now[name] for name in sums}, sums)


def assert_turns_are_steps(sharded: bool, method: str, also_plain: bool = False) -> None:
    def trained(method: str | None, clearing: tuple[str, bool]) -> tuple[Any, dict[str, Tensor]]:
        turns = Turns(method, clearing, sharded, lr=0.1, momentum=0.5)
        for index in range(TURNS):
            turns.run(index)
        return turns.state, local(turns.plain)

    expected, weights = trained(method, ("after", True))
    assert expected.totals.steps == TURNS
    for clearing in CLEARING:
        state, actual = trained(method, clearing)
        assert_same(actual, weights)
        assert state.totals.state_dict() == expected.totals.state_dict()
        assert len(state.last_step.layers) == len(expected.last_step.layers)
        assert_same(state.feedback.state_dict(), expected.feedback.state_dict())
        if also_plain:
            assert_close(actual, trained(None, clearing)[1])


@scenario(2, values=METHODS)
def two_optimizers_in_turn_train_the_same_whenever_they_clear_gradients(method: str) -> None:
    assert_turns_are_steps(False, method, also_plain="1e-30" in method)


@scenario(4, values=("linear(8)", "strom(density(0.1), momentum=0.9) | golomb_rice"))
def so_they_do_with_fsdp2(method: str) -> None:
    assert_turns_are_steps(True, method)


@scenario(2)
def a_generator_and_a_discriminator_in_one_step_are_one_step() -> None:
    for clearing in CLEARING:
        plain, model = halves()
        state = compress_gradients(model, "wgt(1e-30)")
        one, two = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (plain.one, plain.two))
        for step in range(3):
            for optimizer in (one, two) if clearing[0] == "before" else ():
                optimizer.zero_grad(set_to_none=clearing[1])
            for index, used in enumerate((["one"], ["one"], ["one", "two"])):
                turn(model, plain, 3 * step + index, *used)
            assert state.totals.steps == step + 1
            one.step()
            two.step()
            for optimizer in (one, two) if clearing[0] == "after" else ():
                optimizer.zero_grad(set_to_none=clearing[1])


@scenario(2, values=CLEARING)
def a_skipped_step_leaves_the_other_optimizers_step(clearing: tuple[str, bool]) -> None:
    for spoiled in (2, 3, 5):
        turns = Turns("wgt(0.05, nonfinite='skip')", clearing, lr=1.0)
        skipped = [turns.run(index, spoiled) for index in range(TURNS)]
        assert skipped == [index == spoiled for index in range(TURNS)]
        assert (turns.state.totals.steps, turns.state.totals.skipped_steps) == (TURNS, 1)
        turns.sums.assert_nothing_lost(turns.state)


@scenario(2, values=CLEARING)
def training_goes_on_where_the_first_step_is_skipped(clearing: tuple[str, bool]) -> None:
    """Without gradients of its own to clear, the second turn may be taken for a part of the first."""
    for method in ("wgt(0.05, nonfinite='skip')", "wgt(0.05, momentum=0.5, nonfinite='skip')"):
        turns = Turns(method, clearing, lr=1.0)
        skipped = [turns.run(index, 0) for index in range(TURNS)]
        assert skipped[0]
        assert not any(skipped[2:])
        if "momentum" not in method:
            turns.sums.assert_nothing_lost(turns.state)


@scenario(2, values=("allgather", "sharded", "ring", "collective"))
def of_two_optimizers_under_a_scaler_the_one_that_steps_keeps_what_was_sent(pattern: str) -> None:
    """One pass for both; only one of them has an infinity. Without a sum, a gradient is left out."""
    method = "wgt(0.05)" if pattern == "allgather" else "linear(4)"
    for overflow, fused in product((None, 1), (False, True)):
        plain, model = halves()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        state = compress_gradients(model, method, scaler=scaler, pattern=pattern)  # type: ignore[arg-type]
        optimizers = [
            torch.optim.SGD(part.parameters(), lr=1.0, fused=fused) for part in (plain.one, plain.two)
        ]
        sums = Sums(plain)
        for step in range(4):
            factor = math.inf if step == overflow and dist.get_rank() else 1.0
            handle = plain.one.weight.register_hook(lambda gradient, factor=factor: gradient * factor)
            sums.scale, given = scaler.get_scale(), {n: total.clone() for n, total in sums.given.items()}
            turn(model, plain, step, "one", "two", scale=scaler.scale(torch.ones(())))
            handle.remove()
            before = local(plain)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            moved = {name: weight != before[name] for name, weight in local(plain).items()}
            assert bool(moved["one.weight"].any()) == (step != overflow)
            if pattern == "allgather":
                assert moved["two.weight"].any()
            elif step == overflow:
                sums.given = {n: torch.where(moved[n], g, given[n]) for n, g in sums.given.items()}
            for optimizer in optimizers:
                optimizer.zero_grad()
        sums.assert_nothing_lost(state, "two.")


@scenario(2)
def a_skipped_step_of_two_passes_leaves_residuals_as_before_it_under_a_scaler() -> None:
    for overflow, fused in product((0, 1), (False, True)):
        plain, model = halves()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        state = compress_gradients(model, "wgt(0.05)", scaler=scaler)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, fused=fused)
        for step in range(3):
            before = {name: residual.clone() for name, residual in state.feedback.residuals.items()}
            for part in range(2):
                scale = scaler.scale(torch.ones(()))
                if (step, part, dist.get_rank()) == (2, overflow, 1):
                    scale = scale * math.inf
                turn(model, plain, 2 * step + part, "one", "two", scale=scale)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert state.last_step.skipped
        state.state_dict()
        assert_same(state.feedback.residuals, before)
