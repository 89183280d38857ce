"""Workers at several sites, against the same runs without sites; see ddp.py."""

import random
import re
import socket
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from ddp import TINY_BUCKETS, Run, assert_alike, assert_same, everyone, handed_over, refusal, scenario
from ddp_training import WGT, assert_told
from torch import Tensor

from taugrad.compressors import CompressionState, compression_hook

LAYOUTS = {"2+2": [[0, 1], [2, 3]], "1+3": [[0], [1, 2, 3]], "each alone": [[3], [2], [1], [0]]}
GROWING, REFUSED = "strom(schedule({0: 0.5, 2: 0.02, 3: 0.3}))", "wgt(0.03, nonfinite='skip')"
CASES = [(GROWING, TINY_BUCKETS), (GROWING, 25), (REFUSED, TINY_BUCKETS)]
"""Lines and buckets: messages of very different lengths, of a few hundred bytes or in one."""


def shaken(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """The hook, now and then late on some worker: messages about the buckets come in other orders."""
    sleep(random.Random(f"{dist.get_rank()} {bucket.index()} {state.totals.steps}").choice([0, 0, 0.004]))
    return compression_hook(state, bucket)


def trained(line: str, cap: float, **options: Any) -> Run:
    run = Run(line, bucket_cap_mb=cap, **options)
    if line == REFUSED and dist.get_rank() == 0:
        run.poison = {2: ("first.bias", float("nan"))}
    return run.steps()


@scenario(4, values=CASES)
def between_sites_every_bit_is_that_without_them(case: tuple[str, float]) -> None:
    exact = trained(*case)
    for name, sites in LAYOUTS.items():
        with handed_over() as handed:
            run = trained(*case, pattern="hierarchical", sites=sites, hook=shaken)
        assert run.digests == exact.digests
        assert run.skipped == exact.skipped == ([2] if case[0] == REFUSED else [])
        assert_same(run.residuals, exact.residuals)
        totals, state, plain = (
            run.state.totals.state_dict(),
            run.state.state_dict(),
            exact.state.totals.state_dict(),
        )
        both = {"wire_bytes": 0, "messages": 0}
        assert {**totals, **both} == {**plain, **both}
        assert_same(state["traffic"]["link_bytes"], handed.nbytes)
        assert_same(state["traffic"]["link_messages"], handed.messages)
        links = {
            what: torch.stack(everyone(state["traffic"][what])) for what in ("link_bytes", "link_messages")
        }
        totals, plain = (
            {name: sum(one[name] for one in everyone(some)) for name in some} for some in (totals, plain)
        )
        assert int(links["link_bytes"].sum()) == totals["received_bytes"]
        assert int(links["link_messages"].sum()) == totals["messages"] == plain["messages"]
        if case == CASES[0]:
            check_slow_links(name, links, totals, plain["wire_bytes"])


def check_slow_links(name: str, state: dict[str, Any], totals: dict[str, int], wire_bytes: int) -> None:
    """S - 1 times each message; wire bytes once more for each site where somebody hands it on."""
    sites = LAYOUTS[name]
    site_of = {rank: number for number, site in enumerate(sites) for rank in site}
    crossing = [(i, j) for i in site_of for j in site_of if site_of[i] != site_of[j]]
    assert sum(int(state["link_bytes"][link]) for link in crossing) == (len(sites) - 1) * wire_bytes
    messages = sum(int(state["link_messages"][link]) for link in crossing)
    assert 3 * messages == (len(sites) - 1) * totals["messages"]
    assert (
        totals["wire_bytes"]
        == {
            "each alone": wire_bytes,
            "2+2": 2 * wire_bytes,
            # Worker 0's alone are handed on, by worker 1 to 2 and 3.
            "1+3": wire_bytes + int(state["link_bytes"][0, 1]),
        }[name]
    )


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
