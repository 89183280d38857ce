"""Islands as members: processes that hold one sharded model together, beside members with whole models."""

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Timer
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from ddp import assert_same, everyone, refusal, scenario, through_a_file
from ddp_replicas import islands
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from taugrad.compressors import LocalSteps, Members, Outer
from taugrad.compressors.coordinator import ask_status
from taugrad.compressors.exchange.members.server import CoordinatorServer, TableFile

KEY = b"0123456789abcdef0123456789abcdef"
STEPS = 7
VARIANTS: dict[str, dict[str, Any]] = {
    "at once": {},
    "fragments": {"fragments": 3},
    "delay": {"delay_steps": 2},
}


@contextmanager
def coordinator(**options: Any) -> Iterator[Members]:
    """One that all processes reach, until all have ended."""
    with tempfile.TemporaryDirectory() as folder:
        server = None
        if dist.get_rank() == 0:
            server = CoordinatorServer("0", KEY, TableFile(Path(folder) / "run.db"))
            server.start()
        address = everyone(server and server.address)[0]
        yield Members(address, KEY, **{"max_members": 4, "wait": 60, "quorum": 1.0} | options)
        dist.barrier()
        if server is not None:
            server.close()


def made(mesh: DeviceMesh | None, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Seven rows on two processes, and one row, of which the second has nothing; a frozen parameter."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))
    model[0].bias.requires_grad_(False)
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def local_steps(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> LocalSteps:
    defaults = {
        "every": 3,
        "method": "strom(density(0.2, every=1)) | golomb_rice",
        "unsent": "1/n",
        "outer": Outer(lr=0.7, momentum=0.9, nesterov=True),
    }
    return LocalSteps(model, optimizer, **defaults | options)


@torch.no_grad()
def move(model: nn.Module, seed: int) -> None:
    """A step whose sums are the same whole and sharded; only the leader's buffers are as they should be."""
    drawing = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        step = 0.1 * torch.randn(parameter.shape, generator=drawing)
        if not parameter.requires_grad:
            continue
        if isinstance(parameter, DTensor):
            step = distribute_tensor(step, parameter.device_mesh, parameter.placements)
        parameter.sub_(step)
    model[1].running_mean += torch.randn(7, generator=drawing) + dist.get_rank() % 2


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Copies of weights and buffers."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    return {name: tensor.clone() for name, tensor in (tensors | dict(model.named_buffers())).items()}


def trained(who: int | None, mesh: DeviceMesh | None, options: Mapping[str, Any]) -> Any:
    """What the member `who` has in the end, and along the way; None where this process is none."""
    with coordinator(min_members=2) as members:
        local = None
        if who is not None:
            model, optimizer = made(mesh, seed=who)
            group = {} if mesh is None else {"group": mesh.get_group()}
            local = local_steps(model, optimizer, members=members, **group, **options)
        if who == 0:  # its weights are everybody's
            local.join()
        dist.barrier()
        if local is None:
            return None
        local.join()
        seen = [whole(model)]
        for step in range(STEPS):
            move(model, 10 * step + who)
            if local.step():
                seen.append(whole(model))
            if step == STEPS - 2:
                before = whole(model)
                with local.agreed():
                    seen.append(whole(model))
                assert_same(whole(model), before)
        local.finish()
        seen.append(whole(model))
        is_leader = mesh is None or mesh.get_local_rank() == 0
        assert (local.totals.wire_bytes > 0) == is_leader
        return [seen, vars(local.membership)]


@scenario(4, values=VARIANTS)
def an_island_is_a_member_as_one_with_the_whole_model(variant: str) -> None:
    options, rank, mesh = VARIANTS[variant], dist.get_rank(), islands()["shard"]
    expected = everyone(trained(None if rank % 2 else rank // 2, None, options))
    assert_same(trained(rank // 2, mesh, options), expected[rank - rank % 2])
    beside = {0: (0, mesh), 1: (0, mesh), 2: (1, None), 3: (None, None)}
    assert_same(trained(*beside[rank], options), [expected[0], expected[0], expected[2], None][rank])


@scenario(4)
def what_the_leader_raises_all_processes_of_the_island_raise() -> None:
    rank, mesh = dist.get_rank(), islands()["shard"]
    group = mesh.get_group()
    with coordinator() as members:
        model, optimizer = made(mesh)
        local = local_steps(model, optimizer, members=members, group=group, every=1 if rank < 2 else 2)
        said = [refusal(local.join)]
        dist.barrier()  # one of the islands is in
        assert everyone(said[0], group) == said * 2
        refused = [text.startswith("MemberRefused") for text in everyone(said[0])]
        assert sorted(refused) == [False, False, True, True]
        if rank % 2 and said == ["taken"]:
            model[0].weight.detach().to_local()[-1, -1] = torch.nan
        said = everyone([refusal(local.step), refusal(local.step)], group)
        assert said[0] == said[1]
        assert any("'0.weight' holds NaN" in text or text.startswith("MemberRefused") for text in said[0])


@scenario(4)
def processes_of_an_island_get_one_shard_and_go_on_from_their_states() -> None:
    rank, mesh = dist.get_rank(), islands()["shard"]
    everybody = DeviceMesh("cpu", torch.arange(4))
    with coordinator(min_members=2) as members:
        model, optimizer = made(mesh)
        local = local_steps(model, optimizer, members=members, group=mesh.get_group())
        shard = local.lease()
        for step in range(4):
            move(model, step)
            local.step()
        shards = everyone(shard)
        assert sorted(shards) == [0, 0, 1, 1]
        assert shards[0] == shards[1]
        state, before = through_a_file(local.state_dict()), whole(model)
        states = everyone(state)
        incarnations = everyone(local.membership.incarnation)
        assert incarnations[::2] == incarnations[1::2]
        model, optimizer = made(mesh, seed=7)
        again = local_steps(model, optimizer, members=members, group=mesh.get_group())
        said = refusal(lambda: again.load_state_dict(states[rank ^ 1]))
        assert "an island goes on in as many processes as it had" in said
        again.load_state_dict(state)
        assert_same(whole(model), before)
        assert (again.membership.incarnation, again.totals) == (local.membership.incarnation, local.totals)
        if rank % 2 == 0:
            local._rounds._session.close()
        while ask_status(members.coordinator, KEY).peers:
            sleep(0.1)
        dist.barrier()
        again.join()
        assert (again.membership.joins, again.membership.dropped) == (2, 0)
        said = refusal(lambda: again.load_state_dict(state))
        assert said.startswith("ValueError: this member has joined already")
        again.finish()

        model, optimizer = made(everybody)
        said = refusal(lambda: local_steps(model, optimizer, members=members, group=mesh.get_group()))
        assert "is sharded over the ranks [0, 1, 2, 3]" in said
        taking = replace(members, moments=True)
        assert "moments = True" in refusal(lambda: local_steps(model, optimizer, members=taking))
        larger = local_steps(model, optimizer, members=members)
        said = refusal(lambda: larger.load_state_dict(state))
        assert f"process {rank % 2} of an island of 2, this is process {rank} of an island of 4" in said
        alone = local_steps(*made(None), members=members)
        assert "this is a worker that is no island" in refusal(lambda: alone.load_state_dict(states[0]))


@scenario(2, kills=(1,))
def a_leader_that_waits_for_others_notices_that_a_process_is_gone() -> None:
    context = coordinator(min_members=2)
    members = context.__enter__()  # to be left by all
    model, optimizer = made(DeviceMesh("cpu", torch.arange(2)))
    local = local_steps(model, optimizer, members=members, every=1)
    local.join()
    move(model, 0)
    if dist.get_rank() == 1:
        Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    assert refusal(local.step).startswith("PeerLost: another worker is gone: ")
