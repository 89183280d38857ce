"""What the workers of test_hook_methods.py run; used as scenarios.py is.

Every method of support/methods.py goes through the hook, and each step is noted with all that a test needs to
check it from outside: gradients given, updates applied, what is kept, and the bytes handed over.
"""

import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from scenarios import (
    TINY_BUCKETS,
    Branches,
    Config,
    Result,
    Run,
    failure_of,
    gradients,
    loss_of,
    main,
    make_model,
)
from torch import Tensor

from taugrad.compressors.exchange.buckets import Arriving, Exchange
from taugrad.compressors.method import read_config
from taugrad.compressors.ops.array import Bytes

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from methods import CONSERVING, KINDS, METHODS

STEPS, STOP = 5, 3

_start = Exchange.start
_payloads: list[Result] = []


def _noting(self: Exchange, own: Bytes, bucket: int) -> Arriving:
    """Notes a payload's size and, by the header's documented places, the elements of each message."""
    sent, at, payload = [], 0, own
    while at < payload.size:
        sent.append(int(payload[at + 12 : at + 16].view("<u4")[0]))
        at += 28 + int(payload[at + 16 : at + 24].view("<u8")[0])
    _payloads.append({"size": payload.size, "sent": sent})
    return _start(self, own, bucket)


Exchange.start = _noting  # type: ignore[method-assign]


def run_of(config: Config, **options: Any) -> Run:
    return Run(config, process_group=dist.group.WORLD, **options)


def flat(tensors: dict[str, Any]) -> dict[str, Tensor]:
    return {name: tensor.detach().flatten().clone() for name, tensor in tensors.items() if tensor is not None}


def kept(run: Run) -> dict[str, Tensor]:
    """What a worker owes, by parameter."""
    state = run.state.state_dict()
    return flat(state["residuals"] if state["powersgd"] is None else state["powersgd"]["errors"])


def noted_step(run: Run) -> Result:
    """Takes one step and notes everything about it."""
    _payloads.clear()
    run.step()
    last = run.state.last_step
    return {
        "digest": run.digests[-1],
        "given": flat(run.latest),
        "applied": flat(gradients(run.model)),
        "kept": kept(run),
        "velocities": flat(run.state.feedback.velocities),
        "totals": last.state_dict(),
        "residual_squares": last.residual_squares,
        "keeps_residuals": last.keeps_residuals,
        "layers": [(each.name, each.elements, each.sent, each.paper_bits) for each in last.layers],
        "taus": {each.name: each.tau for each in last.layers if each.tau is not None},
        "payloads": list(_payloads),
    }


def noted_steps() -> Result:
    result = {}
    for line in METHODS:
        run = run_of(line)
        result[line] = {
            "steps": [noted_step(run) for _ in range(STEPS)],
            "totals": run.state.totals.state_dict(),
        }
    return result


def other_ways_of_ddp() -> Result:
    """Options of DDP that must not change a weight."""
    options: dict[str, dict[str, Any]] = {
        "static graph": {"static_graph": True},
        "find unused": {"find_unused_parameters": True, "bucket_cap_mb": TINY_BUCKETS},
    }
    return {
        (line, name): run_of(line, **chosen).steps(STEPS).digests
        for line in KINDS.values()
        for name, chosen in options.items()
    }


def tiny_buckets() -> Result:
    return {line: run_of(line, bucket_cap_mb=TINY_BUCKETS).steps(STEPS).digests for line in METHODS}


def sum_and_mean() -> Result:
    result = {}
    for line in KINDS.values():
        for reduction in ("mean", "sum"):
            run = run_of(read_config(line).model_copy(update={"reduction": reduction}))
            for step in range(3):  # powersgd begins with plain all-reduces
                run.backward(loss_of(run.ddp, dist.get_rank(), step))
            result[line, reduction] = flat(gradients(run.model))
    return result


def other_types() -> Result:
    result = {}
    for line in CONSERVING:
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            run = run_of(line, model=make_model().to(dtype))
            result[line, str(dtype)] = [noted_step(run) for _ in range(2)]
    return result


def unused_parameters() -> Result:
    """`sometimes` is left out by worker 1 in every second step, `rarely` by all in most steps."""
    result = {}
    for line in CONSERVING:
        torch.manual_seed(0)
        model = Branches()
        run = run_of(line, model=model, find_unused_parameters=True)
        for step in range(6):
            model.used = {"sometimes"} if dist.get_rank() == 0 or step % 2 == 0 else set()
            if step in (0, 4):
                model.used.add("rarely")
            run.step()
        result[line] = run.result()
    return result


def nonfinite_refused() -> Result:
    result = {}
    for line in (*CONSERVING, "none", "powersgd(start=2)", "qgt(0.01, exempt=exempt(names=['*.bias']))"):
        for cap, bad in ((None, math.nan), (TINY_BUCKETS, math.inf)):
            run = run_of(line, bucket_cap_mb=cap)
            if dist.get_rank() == 1:
                run.poison = {3: ("middle.bias", bad)}
            run.steps(3)
            result[line, cap] = failure_of(run)
    return result


def nonfinite_skipped() -> Result:
    """Worker 1's gradients are not finite in two of six steps, all workers' in another."""
    result = {}
    for line in (*CONSERVING, "none"):
        config = read_config(line).model_copy(update={"nonfinite": "skip"})
        run = run_of(config, bucket_cap_mb=TINY_BUCKETS)
        run.poison = {2: ("middle.weight", float("nan"))}
        if dist.get_rank() == 1:
            run.poison |= {3: ("head.bias", float("-inf")), 5: ("first.weight", float("nan"))}
        noted = []
        for _ in range(6):
            run.step()
            noted.append((run.state.totals.skipped_steps, sorted(run.state.last_step.nonfinite)))
        result[line] = run.result(skipped=run.skipped, noted=noted)
    return result


# Checkpoints: written by one group's processes, read by another's.


def path_of(folder: Path, line: str) -> Path:
    return folder / f"{list(METHODS).index(line)}-{dist.get_rank()}.pt"


def ending(run: Run) -> Result:
    state = run.state.state_dict()
    return {"digests": run.digests, "state": state}


def never_stopped(folder: Path) -> Result:
    result = {}
    for line in METHODS:
        run = run_of(line, bucket_cap_mb=TINY_BUCKETS).steps(STOP)
        saved = {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "compression": run.state.state_dict(),
        }
        torch.save(saved, path_of(folder, line))
        result[line] = ending(run.steps(STOP))
    return result


def resumed(folder: Path) -> Result:
    result = {}
    for line in METHODS:
        loaded = torch.load(path_of(folder, line), weights_only=True)
        model = make_model()
        model.load_state_dict(loaded["model"])
        run = run_of(line, model=model, bucket_cap_mb=TINY_BUCKETS)
        run.optimizer.load_state_dict(loaded["optimizer"])
        run.state.load_state_dict(loaded["compression"])
        run.at = STOP
        result[line] = ending(run.steps(STOP))
    return result


GROUPS = {
    "methods-2": [
        noted_steps,
        other_ways_of_ddp,
        sum_and_mean,
        other_types,
        unused_parameters,
        nonfinite_skipped,
        nonfinite_refused,
        never_stopped,
    ],
    "methods-3": [noted_steps, tiny_buckets, unused_parameters, nonfinite_skipped],
    "resumed-2": [resumed],
}

if __name__ == "__main__":
    main(GROUPS)
