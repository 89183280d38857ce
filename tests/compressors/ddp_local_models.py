"""Local steps with models of all kinds: their parameters and buffers, and changes of these; see ddp.py."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ddp import DEVICE, assert_alike, everyone, new_group, refusal, scenario, through_a_file
from torch import Tensor, nn

from taugrad.compressors import LocalSteps, Outer
from taugrad.compressors.integrations.rank_files import load_rank

Change = Callable[[nn.Sequential], Any]
CHANNELS_LAST: Any = {"memory_format": torch.channels_last}
LAYOUTS: dict[str, Change] = {
    "slices": lambda net: setattr(net[2], "weight", nn.Parameter(torch.randn(2, 32)[:, ::2])),
    "transposed": lambda net: setattr(net[2], "weight", nn.Parameter(torch.randn(16, 2).t())),
    "channels last": lambda net: net.to(**CHANNELS_LAST),
    "channels last on rank 1": lambda net: dist.get_rank() and net.to(**CHANNELS_LAST),
    "strided buffer": lambda net: net.register_buffer("table", torch.randn(4, 6)[:, ::2]),
}
"""By name, what makes tensors lie otherwise in memory."""
RESHARDED: dict[str, dict[str, Any]] = {
    "mean": {},
    "outer": {"outer": Outer(lr=0.7, momentum=0.9, nesterov=True)},
    "late": {"fragments": 2, "delay_steps": 2},
    "unsent": {"unsent": "1/n", "method": "strom(density(0.1, every=1))"},
    "examples": {"delay_steps": 3},
}
"""By name, arguments of local steps; in `examples`, workers weigh."""
DTYPES = ("int16", "uint16", "float8_e4m3fn", "bool", "complex64", "int64", "float64")


def convolution(change: Change) -> nn.Sequential:
    """Other weights on each rank."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    change(net)
    return net.to(DEVICE)


def values_of(model: nn.Module) -> list[Any]:
    """All parameters and buffers as lists, in the order of their indices."""
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor.detach().to_dense().to(torch.complex128).tolist() for tensor in tensors]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, local: LocalSteps, inputs: Tensor | None = None
) -> None:
    drawn = torch.randn(8, 4) if inputs is None else inputs
    model(drawn.to(DEVICE, next(model.parameters()).dtype)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    local.step()


@scenario(2, values=LAYOUTS)
def tensors_begin_as_rank_0s_and_end_alike_however_they_lie_in_memory(layout: str) -> None:
    net = convolution(LAYOUTS[layout])
    before = values_of(net)
    optimizer = sgd(net)
    local = LocalSteps(net, optimizer, every=2)
    begun = values_of(net)
    assert_alike(begun)
    assert (begun == before) == (dist.get_rank() == 0)
    for _ in range(3):
        train(net, optimizer, local, torch.randn(5, 3, 4, 4))
    local.finish()
    assert_alike(values_of(net))
    assert values_of(net) != begun


@scenario(2, values=DTYPES)
def buffers_of_any_dtype_become_rank_0s(name: str) -> None:
    """At the beginning, and in an exchange."""
    dtype, net, rank = getattr(torch, name), nn.Linear(4, 2), dist.get_rank()

    def fill(seed: int) -> Tensor:
        drawn = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed))
        return (100 * drawn).to(dtype).to(DEVICE)

    net.to(DEVICE).register_buffer("table", fill(rank))
    optimizer = sgd(net)
    local = LocalSteps(net, optimizer, every=1)
    assert net.table.float().equal(fill(0).float())
    net.table.copy_(fill(10 + rank))
    train(net, optimizer, local)
    assert net.table.dtype == dtype
    assert net.table.float().equal(fill(10).float())


class Centered(nn.Module):
    """Assigns its buffer anew in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs - self.mean


def centered(**arguments: Any) -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
    torch.manual_seed(dist.get_rank())
    model = Centered().to(DEVICE)
    optimizer = sgd(model)
    return model, optimizer, LocalSteps(model, optimizer, **{"every": 2, **arguments})


@scenario(2)
def buffers_that_forward_assigns_anew_are_exchanged_and_saved() -> None:
    model, optimizer, local = centered()
    for step in range(5):
        train(model, optimizer, local)
        means = everyone(model.mean.tolist())
        assert (means[0] == means[1]) == (step % 2 == 1)
    with local.agreed():
        model.eval()
        assert_alike(model(torch.ones(2, 4, device=DEVICE)).tolist())
        model.train()
    assert everyone(model.mean.tolist()) == means
    other, _, again = centered()
    again.load_state_dict(through_a_file(local.state_dict()))
    assert other.mean.equal(model.mean)
    for steps in (local, again):
        steps.finish()
    assert other.mean.equal(model.mean)
    assert_alike(model.mean.tolist())


@scenario(2)
def buffers_may_get_another_dtype_if_all_workers_change_it() -> None:
    model, optimizer, local = centered()
    train(model.double(), optimizer, local)
    train(model, optimizer, local)
    assert model.mean.dtype == torch.float64
    assert_alike(model.mean.tolist())
    if dist.get_rank():
        model.mean = model.mean.float()
    train(model, optimizer, local, torch.ones(8, 4))
    if dist.get_rank():
        model.mean = model.mean.float()

    said = refusal(local.finish)
    if dist.get_rank():  # rank 0 has what it needs
        assert said == (
            "WorkersDisagree: the workers do not agree: rank 0: buffer 'mean' = float64 [3], rank 1: buffer "
            "'mean' = float32 [3]"
        )


@scenario(2)
def what_ranks_do_not_have_alike_is_named_with_the_ranks() -> None:
    rank = dist.get_rank()

    def said(buffer: Tensor | None, *, frozen: int = 3, **arguments: Any) -> str:
        net = nn.Linear(4, 2).to(DEVICE)
        net.register_buffer("table", buffer)
        net.frozen = nn.Parameter(torch.zeros(frozen, device=DEVICE), requires_grad=False)
        return refusal(lambda: LocalSteps(net, sgd(net), every=1, **arguments))

    quantized = torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.quint8)
    for attempt, words in (
        (
            said(torch.zeros(3 + rank)),
            "rank 0: buffer 'table' = float32 [3], rank 1: buffer 'table' = float32 [4]",
        ),
        (
            said(None if rank else torch.zeros(3)),
            "rank 0: buffer 'table' = float32 [3], rank 1: no buffer 'table'",
        ),
        (
            said(None, frozen=3 + rank),
            "rank 0: frozen 'frozen' = float32 [3], rank 1: frozen 'frozen' = float32 [4]",
        ),
        (said(None, buffers=bool(rank)), "rank 0: buffers = False, rank 1: buffers = True"),
        (said(torch.eye(3).to_sparse_csr()), "ValueError: buffer 'table' is of torch.sparse_csr"),
        (said(quantized), "ValueError: buffer 'table' is of torch.strided torch.quint8"),
        (said(torch.zeros(3, 1).expand(3, 4)), "ValueError: buffer 'table' is expanded"),
        (said(quantized, buffers=False), "taken"),
    ):
        assert words in attempt, attempt


@scenario(2)
def buffers_can_be_left_out() -> None:
    model, optimizer, local = centered(buffers=False)
    model.mean.fill_(dist.get_rank())
    for _ in range(2):
        train(model, optimizer, local)
    before = model.mean.clone()
    local.finish()
    with local.agreed():
        assert model.mean.equal(before)
    other, _, again = centered(buffers=False)
    again.load_state_dict(through_a_file(local.state_dict()))
    assert other.mean.equal(before)
    assert len(set(map(str, everyone(before.tolist())))) == 2


@scenario(2)
def weights_that_no_optimizer_steps_are_rank_0s_and_saved() -> None:
    """Frozen ones, and those of a layer that the optimizer does not know; the trained ones are as before."""
    rank = dist.get_rank()

    def made(seed: int) -> tuple[nn.Sequential, LocalSteps]:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2)).to(DEVICE)
        net[0].requires_grad_(False)
        return net, LocalSteps(net, sgd(net[2]), every=1)

    net, local = made(rank)
    torch.manual_seed(0)
    assert net[0].weight.cpu().equal(nn.Linear(4, 3).weight)
    assert_alike(values_of(net))
    other, again = made(rank + 5)
    assert not other[1].weight.equal(net[1].weight)
    again.load_state_dict(through_a_file(local.state_dict()))
    assert values_of(other) == values_of(net)
    small = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)).to(DEVICE)
    said = refusal(lambda: LocalSteps(small, sgd(small[1]), every=1).load_state_dict(local.state_dict()))
    assert said.startswith("ValueError: the state is of another model")


@scenario(2)
def frozen_weights_whose_data_are_assigned_are_saved_and_loaded() -> None:
    """Such as those of a momentum encoder; a pattern that exempts frozen weights alone is taken."""

    def made() -> tuple[nn.Sequential, LocalSteps]:
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(DEVICE)
        net[0].requires_grad_(False)
        method = {"kind": "wgt", "tau": 0.1, "exempt": {"names": ["0.*"]}}
        return net, LocalSteps(net, sgd(net), every=1, method=method)

    (net, local), (other, again) = made(), made()
    for model, value in ((net, 2.0), (other, 3.0)):
        model[0].weight.data = torch.full((3, 4), value, device=DEVICE)
    state = through_a_file(local.state_dict())
    assert state["others"]["0.weight"].eq(2).all()
    again.load_state_dict(state)
    assert values_of(other) == values_of(net)


def to_be_agreed(state: dict[str, Any], group: Any) -> dict[str, Tensor]:
    """By parameter, the agreed weights less the mean of what workers have not sent."""
    residuals = {
        name: residual
        for fragment in state["rounds"]["fragments"]
        for rank in fragment["unsent"]["ranks"].values()
        for name, residual in rank["residuals"].items()
    }
    kept = everyone(residuals, group)
    return {
        name: weights.cpu() - sum(one[name].cpu() for one in kept if name in one) / len(kept)
        for name, weights in state["agreed"].items()
    }


@scenario(3, values=RESHARDED)
def local_steps_go_on_with_another_number_of_workers(name: str) -> None:
    """Two of three workers, and three of these two: what is agreed in the end is what it would have been."""
    rank = dist.get_rank()
    groups = [None, new_group([1, 2]), None]

    def made(group: Any) -> tuple[nn.Sequential, Any, LocalSteps]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(DEVICE)
        optimizer = sgd(net)
        return net, optimizer, LocalSteps(net, optimizer, every=4, group=group, **RESHARDED[name])

    net, optimizer, local = made(None)
    torch.manual_seed(rank)
    for _ in range(6):
        net(torch.randn(8, 4).to(DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step(*([8 + 3 * rank] if name == "examples" else []))
    states = everyone(local.state_dict())
    assert any(row["in_flight"] for row in states[0]["rounds"]["fragments"]) == (
        "delay_steps" in RESHARDED[name]
    )
    local.finish()
    expected = to_be_agreed(local.state_dict(), None)
    for now, group in zip((2, 3), groups[1:], strict=True):
        if now == 2 and rank == 0:
            states = everyone(None)
            states = [state for state in states if state is not None]
            continue
        net, _, again = made(group)
        if now == 2:
            hint = refusal(lambda: again.load_state_dict(states[rank]))  # noqa: B023
            assert hint.endswith("load the states of all of them with reshard=True"), hint
            said = refusal(lambda: again.load_state_dict(states[:2], reshard=True))  # noqa: B023
            assert said == "ValueError: the states of ranks [0, 1]; those of 3 workers are needed"
            again.load_state_dict(states[::-1], reshard=True)
        else:
            with tempfile.TemporaryDirectory() as folder:
                files = everyone(folder)[0]
                for saved in states if rank == 0 else ():
                    torch.save({**saved, "checkpoint": None}, f"{files}/taugrad-rank{saved['rank']}.pt")
                everyone(None)
                load_rank(again, files, reshard=True)
                everyone(None)
        assert again.totals.steps == 6
        states = [state for state in everyone(again.state_dict()) if state is not None] if now == 2 else []
        again.finish()
        reached = to_be_agreed(again.state_dict(), group)
        for parameter, weights in expected.items():
            torch.testing.assert_close(reached[parameter], weights, rtol=1e-5, atol=1e-6)
        with again.agreed():
            assert len(set(map(str, everyone(values_of(net), group)))) == 1


@scenario(2)
def parameters_that_are_trained_later_are_refused_by_name() -> None:
    """All go on with a new object, whose exchange has the weights as they are."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(DEVICE)
    net[0].requires_grad_(False)
    optimizer = sgd(net[1])
    optimizer.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})  # another model's
    local = LocalSteps(net, optimizer, every=2, exchange="weights")
    for _ in range(3):
        train(net, optimizer, local)
    net[0].requires_grad_(True)
    train(net, optimizer, local)  # nothing steps it yet
    optimizer.add_param_group({"params": list(net[0].parameters())})
    said = refusal(lambda: train(net, optimizer, local))
    assert said == (
        "ValueError: '0.weight' is trained now, and was not when LocalSteps was made: when parameters are "
        "unfrozen or added, call finish() and make a new LocalSteps, on all workers"
    )
    local.finish()
    local = LocalSteps(net, optimizer, every=2, exchange="weights")
    before = net[0].weight.clone()
    for _ in range(2):
        train(net, optimizer, local)
    assert_alike(values_of(net))
    assert not net[0].weight.equal(before)


@scenario(2)
def weights_that_are_not_finite_are_named_and_the_advice_is_accepted() -> None:
    model, optimizer, local = centered()
    if dist.get_rank():
        model.linear.weight.data[0, 0] = torch.nan
    train(model, optimizer, local)
    said = refusal(lambda: train(model, optimizer, local))
    assert said == (
        "NonFiniteWeight: the weight 'linear.bias' holds NaN or Inf on worker 1; lower the learning rate, or "
        "clip gradients; what was agreed on before is not affected"
    )
    with local.agreed():
        assert all(parameter.isfinite().all() for parameter in model.parameters())


class Layers(nn.Module):
    """Two layers of equal size; each step adds to them what tells them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        nn.init.zeros_(self.layers[0].weight)
        nn.init.zeros_(self.layers[1].weight)

    @torch.no_grad()
    def learn(self) -> None:
        self.layers[0].weight += 1.0
        self.layers[1].weight += 100.0


@scenario(2, values=((7, 7), (7, 8), (7, 9), (6, 9), (3, 5)))
def a_fragment_is_never_merged_with_another(steps: tuple[int, int]) -> None:
    """Loaders of unequal length; the fragments have equal sizes."""
    rank, model = dist.get_rank(), Layers().to(DEVICE)
    local = LocalSteps(model, torch.optim.SGD(model.parameters(), lr=0), every=4, fragments=2)

    def run() -> None:
        for _ in range(steps[rank]):
            model.learn()
            local.step()
        local.finish()

    said = refusal(run)
    if steps in ((7, 7), (7, 8)):  # both come to the same exchanges
        assert said == "taken"
        assert [float(layer.weight.mean()) for layer in model.layers] == [sum(steps) / 2, 50 * sum(steps)]
    else:
        disagree = "WorkersDisagree: the workers do not agree: rank 0: rounds left in finish() = 0, rank 1: "
        assert all(of_rank == "taken" or of_rank.startswith(disagree) for of_rank in everyone(said)), said
        assert rank == 0 or said != "taken"
