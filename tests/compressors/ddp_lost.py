"""Workers that are stopped or killed: all others fail in time, and say who it was; see ddp.py.

A stopped process closes no connection; only the process group's timeout tells the others.
"""

import os
import signal
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from ddp import TINY_BUCKETS, Run, everyone, make_model, new_group, refusal, scenario
from ddp_local_steps import SPARSE
from ddp_replicas import WIDTH, passed, sharded
from torch.distributed.device_mesh import DeviceMesh

from taugrad import compressors
from taugrad.compressors import LocalSteps, PeerLost, compress_replicas

PATIENCE_S = 8
"""What the workers ask of their process groups."""
READY = 5
"""Steps after which a worker may be lost: buckets have been formed anew."""
SITES = {"allgather": None, "collective": None, "hierarchical": [[0, 1], [2, 3]]}


def groups_of(workers: int) -> tuple[Any, Any]:
    """Of the first workers, and of those but the last."""
    ranks = range(workers)
    return new_group(ranks, PATIENCE_S), new_group(ranks[:-1])


def lose(line: str, pattern: Any, groups: tuple[Any, Any], how: signal.Signals) -> None:
    """The last of some workers is lost while all train; it goes on, and fails, if it was only stopped."""
    group, others = groups
    options = {"process_group": group, "bucket_cap_mb": TINY_BUCKETS}
    run = Run(line, pattern=pattern, sites=SITES[pattern], **options).steps(READY)
    pid = everyone(os.getpid(), group)[-1]
    if pid == os.getpid():
        os.kill(pid, how)
    said = "taken"
    while said == "taken":
        began, said = monotonic(), refusal(run.step)
    if pid == os.getpid():
        return
    assert monotonic() - began < PATIENCE_S + 30  # not half an hour
    failure, stopped = run.state.failure, how == signal.SIGSTOP
    assert isinstance(failure, PeerLost)
    sentence = str(failure)  # of the first bucket that failed; DDP quotes that of the one it waits for first
    assert "\n" not in sentence
    assert "is gone: " in sentence or "has sent nothing" in sentence
    told = everyone((failure.worker, f"for {PATIENCE_S} s, the process group's timeout" in sentence), others)
    assert any(timeout for _, timeout in told) or not stopped
    if pattern == "collective":
        assert sentence.startswith("another worker of the process group of ranks [0, 1, 2, 3] "), sentence
        assert sentence.endswith("; start all of them again, from a checkpoint")
    elif line != "none":  # also where another one fails first, and is lost in turn
        assert {worker for worker, _ in told} == {dist.get_world_size(group) - 1}, told
    if stopped and dist.get_rank() == 0:
        os.kill(pid, signal.SIGCONT)


@scenario(4, values=[("wgt(0.01)", "hierarchical"), ("none", "allgather"), ("linear(8)", "collective")])
def a_worker_that_is_stopped_is_missed_in_time(case: tuple[str, str]) -> None:
    lose(*case, groups_of(4), signal.SIGSTOP)


@scenario(4, kills=(1, 2, 3))
def workers_that_are_killed_are_named() -> None:
    """One after the other; the last two reduce and exchange FSDP2's shards, and take local steps, before."""
    four, three, pair, rank = groups_of(4), groups_of(3), new_group([0, 1]), dist.get_rank()
    mesh = DeviceMesh("cpu", torch.tensor([[0], [1]]), mesh_dim_names=("replicate", "shard"))
    lose("wgt(0.01)", "hierarchical", four, signal.SIGKILL)
    lose("wgt(0.01)", "allgather", three, signal.SIGKILL)
    model, local = sharded(mesh["shard"]), make_model()
    compress_replicas(model, mesh["replicate"], "wgt(0.01)")
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    steps = LocalSteps(local, optimizer, every=1, method=SPARSE, group=pair)
    passed(model, 0)
    steps.step()
    pairs = DeviceMesh("cpu", torch.tensor([0, 1]), mesh_dim_names=("shard",))
    inside = sharded(pairs, reshard_after_forward=False)  # then a backward pass only reduces
    compressors.compress_reduce_scatter(inside, "linear(8)")
    passed(inside, 0)
    loss = inside(torch.ones(2, WIDTH)).sum()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    said = refusal(loss.backward)
    assert said.startswith("PeerLost: another worker of the process group of ranks [0, 1] is gone: "), said
    assert said.endswith("; start all of them again, from a checkpoint")
    said = refusal(lambda: [passed(model, step) for step in range(1, 100)])
    assert said.startswith("PeerLost: worker 1 is gone: "), said
    said = refusal(lambda: [steps.step() for _ in range(100)])
    assert said.startswith("PeerLost: worker 1"), said
