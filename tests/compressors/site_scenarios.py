"""What the workers of test_hook_sites.py run; used as scenarios.py is."""

import math
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from scenarios import TINY_BUCKETS, Result, Run, main, make_model, thresholded, timed_failure
from torch import Tensor

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.exchange.mesh import Mesh
from taugrad.compressors.ops.array import Bytes

LINES = {
    "growing": "strom(schedule({0: 0.5, 2: 0.02, 3: 0.3}))",
    "refused": "wgt(0.03, nonfinite='skip')",
}
LAYOUTS = {"2+2": [[0, 1], [2, 3]], "1+3": [[0], [1, 2, 3]], "each alone": [[3], [2], [1], [0]]}
CASES = [("growing", "many"), ("growing", "one"), ("refused", "many")]
"""Lines and buckets."""


class HandedOver:
    """int64 [workers, workers], bytes given to the carrier by this worker, from row to column."""

    def __init__(self) -> None:
        self.nbytes = torch.zeros((dist.get_world_size(),) * 2, dtype=torch.int64)
        self.messages = torch.zeros_like(self.nbytes)
        self._send = Mesh.send

    def __enter__(self) -> "HandedOver":
        def counted(mesh: Mesh, to: int, tag: str, payload: Bytes) -> None:
            if " of " in tag:  # not the mesh's own
                self.nbytes[dist.get_rank(), to] += payload.size
                self.messages[dist.get_rank(), to] += 1
            self._send(mesh, to, tag, payload)

        Mesh.send = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Mesh.send = self._send  # type: ignore[method-assign]


def shaken(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The hook, now and then late on some worker: messages about the buckets come in other orders."""
    sleep(random.Random(f"{dist.get_rank()} {bucket.index()} {state.totals.steps}").choice([0, 0, 0.004]))
    return compressed_allgather(state, bucket)


def trained(line: str, cap: float, **options: Any) -> Result:
    run = Run(LINES[line], bucket_cap_mb=cap, **options)
    if line == "refused" and dist.get_rank() == 0:
        run.poison = {2: ("first.bias", math.nan)}
    run.steps()
    return run.result(skipped=run.skipped, state=run.state.state_dict())


def between_sites() -> Result:
    """Beside the same runs with `exact`: in buckets of a few hundred bytes, and in one."""
    result: Result = {}
    for line, buckets in CASES:
        cap = TINY_BUCKETS if buckets == "many" else 25
        result["exact", buckets, line] = trained(line, cap)
        for name, sites in LAYOUTS.items():
            with HandedOver() as handed:
                found = trained(line, cap, exchange="hierarchical", sites=sites, recording=shaken)
            result[name, buckets, line] = {
                **found,
                "handed": handed.nbytes,
                "sends": handed.messages,
            }
    return result


def by_host() -> Result:
    """Workers 0 and 1 say that they are on one host, 2 and 3 on another."""
    gethostname = socket.gethostname
    socket.gethostname = lambda: f"host-{dist.get_rank() // 2}"
    run = Run(thresholded("wgt"), exchange="hierarchical").steps()
    socket.gethostname = gethostname
    return run.result(sites=str(run.state.exchange.sites))


def sites_that_differ() -> Result:
    first = dist.get_rank() == 0
    ways: dict[str, tuple[Sequence[Sequence[int]] | None, ...]] = {
        "others": ([[0, 1], [2, 3]], [[0, 2], [1, 3]]),
        "none": ([[0, 1], [2, 3]], None),
    }
    return {
        name: timed_failure(Run(thresholded("wgt"), exchange="hierarchical", sites=sites[not first]))
        for name, sites in ways.items()
    }


def going_on(folder: Path) -> Result:
    """A run that goes on from its third step beside one that never stopped."""
    options: dict[str, Any] = {"exchange": "hierarchical", "sites": LAYOUTS["2+2"]}
    run = Run(thresholded("wgt"), **options).steps(3)
    path = folder / f"between-sites-{dist.get_rank()}.pt"
    torch.save([run.model.state_dict(), run.optimizer.state_dict(), run.state.state_dict()], path)
    run.steps(3)
    weights, optimizer, compression = torch.load(path, weights_only=True)
    model = make_model()
    model.load_state_dict(weights)
    again = Run(thresholded("wgt"), model=model, **options)
    again.optimizer.load_state_dict(optimizer)
    again.state.load_state_dict(compression)
    again.at = 3
    again.steps(3)
    return {
        "never": run.result(state=run.state.state_dict()),
        "stopped": again.result(state=again.state.state_dict()),
    }


def refused() -> Result:
    """What a state is refused for when it is made."""
    run = Run(None)
    found = {}
    for name, options in {
        "not each once": {"exchange": "hierarchical", "sites": [[0, 1], [1, 2]]},
        "another exchange": {"sites": [[0, 1], [2, 3]]},
        "unknown": {"exchange": "padded"},
    }.items():
        try:
            CompressionState(run.ddp, "wgt(0.01)", **options)  # type: ignore[arg-type]
        except ValueError as error:
            found[name] = str(error)
    return found


GROUPS = {"sites-4": [between_sites, by_host, sites_that_differ, going_on, refused]}

if __name__ == "__main__":
    main(GROUPS)
