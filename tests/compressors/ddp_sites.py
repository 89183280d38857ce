"""Workers at several sites, which must come to the bits of workers without sites; see ddp.py."""

import random
import re
import socket
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from ddp import Run, assert_alike, everyone, refusal, scenario
from ddp_methods import keep_promises, refuse_or_skip
from ddp_training import WGT, assert_told
from torch import Tensor

from taugrad.compressors import CompressionState, compression_hook

LAYOUTS = {"2+2": [[0, 1], [2, 3]], "1+3": [[0], [1, 2, 3]], "each alone": [[3], [2], [1], [0]]}
GROWING = "strom(schedule({0: 0.5, 2: 0.02, 3: 0.3}))"
"""Its messages have very different lengths."""


def shaken(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The hook, now and then late on some worker: messages about the buckets come in other orders."""
    sleep(random.Random(f"{dist.get_rank()} {bucket.index()} {state.totals.steps}").choice([0, 0, 0.004]))
    return compression_hook(state, bucket)


@scenario(4, values=LAYOUTS)
def between_sites_every_bit_is_that_without_them(layout: str) -> None:
    """Slow links see S - 1 times each message; wire bytes count again where somebody hands a message on."""
    sites = LAYOUTS[layout]
    options: Any = {"pattern": "hierarchical", "sites": sites, "hook": shaken}
    run = keep_promises(GROWING, **options)
    traffic, totals = run.state.traffic, everyone(run.state.totals.state_dict())
    nbytes, messages = (
        torch.tensor(everyone(of.tolist())) for of in (traffic.link_bytes, traffic.link_messages)
    )
    site_of = {rank: number for number, site in enumerate(sites) for rank in site}
    crossing = [(i, j) for i in site_of for j in site_of if site_of[i] != site_of[j]]
    plain = int(nbytes.sum()) // 3  # each message comes to three others
    assert sum(int(nbytes[link]) for link in crossing) == (len(sites) - 1) * plain
    assert 3 * sum(int(messages[link]) for link in crossing) == (len(sites) - 1) * int(messages.sum())
    # Of one and three, worker 0's alone are handed on, by worker 1 to 2 and 3.
    due = {"each alone": plain, "2+2": 2 * plain, "1+3": plain + int(nbytes[0, 1])}
    assert sum(total["wire_bytes"] for total in totals) == due[layout]
    refuse_or_skip("wgt(0.03)", **options)


@scenario(4)
def by_default_the_workers_of_a_host_are_a_site() -> None:
    gethostname = socket.gethostname
    socket.gethostname = lambda: f"host-{dist.get_rank() // 2}"
    run = Run(WGT, pattern="hierarchical").steps()
    socket.gethostname = gethostname
    assert str(run.state._reducer._sites) == "[[0, 1], [2, 3]]"
    assert_alike(run.digests)


@scenario(4)
def workers_that_have_other_sites_all_say_so() -> None:
    mine = [[0, 1], [2, 3]]
    for others, words in (
        ([[0, 2], [1, 3]], "rank 0: sites = [[0, 1], [2, 3]], ranks 1, 2, 3: sites = [[0, 2], [1, 3]]"),
        (None, "ranks 1, 2, 3: sites = by host"),
    ):
        run = Run(WGT, pattern="hierarchical", sites=others if dist.get_rank() else mine)
        assert_told(run, f".*{re.escape(words)}")


@scenario(4)
def sites_that_cannot_be_are_refused() -> None:
    run = Run(None)
    for options, words in (
        ({"sites": [[0, 1], [2, 3]]}, "sites = [[0, 1], [2, 3]] with pattern = allgather"),
        ({"pattern": "padded"}, "pattern = 'padded': must be one of allgather, hierarchical, ring, "),
    ):
        made: Any = lambda options=options: CompressionState(run.ddp, WGT, **options)  # noqa: E731
        assert refusal(made).startswith(f"ValueError: {words}")
