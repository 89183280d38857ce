"""A fixed group goes on as members, and these as a fixed group; see ddp.py."""

from typing import Any

import torch
import torch.distributed as dist
from ddp import everyone, refusal, scenario, through_a_file
from ddp_islands import coordinator
from torch import Tensor, nn

from taugrad.compressors import LocalSteps, Outer


def made(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, LocalSteps]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    local = LocalSteps(
        net,
        optimizer,
        every=4,
        method="strom(density(0.1, every=1))",
        unsent="1/n",
        outer=Outer(lr=0.7, momentum=0.9, nesterov=True),
        **options,
    )
    return net, optimizer, local


def train(net: nn.Module, optimizer: torch.optim.Optimizer, local: LocalSteps, steps: int) -> None:
    for _ in range(steps):
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step()


def agreed(net: nn.Module, local: LocalSteps) -> list[Tensor]:
    with local.agreed():
        return [parameter.detach().clone() for parameter in net.parameters()]


@scenario(2)
def a_fixed_group_goes_on_as_members_and_these_as_a_fixed_group() -> None:
    """Each time amid an interval: what is agreed in the end is what it would have been."""
    rank = dist.get_rank()
    with coordinator(min_members=2, quorum=0.5) as members:
        net, optimizer, fixed = made()
        torch.manual_seed(1 + rank)
        train(net, optimizer, fixed, 6)
        state = through_a_file(fixed.state_dict())
        own = net[0].weight.clone()
        fixed.finish()
        expected = agreed(net, fixed)

        net, optimizer, local = made(members=members)
        local.load_state_dict(state)
        assert torch.equal(net[0].weight, own)
        local.join()
        assert (local.membership.dropped, local.membership.restores) == (0, 0)
        early = through_a_file(local.state_dict())
        local.finish()
        for now, then in zip(agreed(net, local), expected, strict=True):
            assert torch.equal(now, then)

        state = through_a_file(local.state_dict())
        net, optimizer, local = made(members=members)
        local.load_state_dict(state)
        train(net, optimizer, local, 6)
        states = everyone(local.state_dict())
        local.finish()
        expected = agreed(net, local)
        net, _, fixed = made()
        said = refusal(lambda: fixed.load_state_dict(states[rank]))
        assert said == "ValueError: the state of a member: load the states of all of them with reshard=True"
        fixed.load_state_dict([*states, early], reshard=True)  # that one is older
        assert fixed.totals.steps == 12
        fixed.finish()
        for now, then in zip(agreed(net, fixed), expected, strict=True):
            torch.testing.assert_close(now, then, rtol=1e-5, atol=1e-6)
