"""Sites, and the way of each worker's message to all others."""

from itertools import pairwise

import numpy as np
import pytest

from taugrad.compressors.exchange.sites import Sites


def partitions(workers: int, seeds: range) -> list[list[list[int]]]:
    """Random ones, ranks in any order."""
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        cuts = np.sort(rng.choice(np.arange(1, workers), rng.integers(0, workers), replace=False))
        ranks = rng.permutation(workers).tolist()
        found.append([ranks[low:high] for low, high in pairwise([0, *cuts.tolist(), workers])])
    return found


CASES = [(workers, ranks) for workers in (1, 2, 3, 5, 8, 13) for ranks in partitions(workers, range(6))]


@pytest.mark.parametrize(("workers", "ranks"), CASES)
def test_everybody_gets_each_message_once_and_it_goes_to_each_site_once(
    workers: int, ranks: list[list[int]]
) -> None:
    sites = Sites.of(ranks, workers)
    site_of = {rank: number for number, site in enumerate(ranks) for rank in site}
    for source in range(workers):
        hops = [(by, to) for each, by, to in sites.hops.tolist() if each == source]
        assert sorted(to for _, to in hops) == [rank for rank in range(workers) if rank != source]
        crossing = [(by, to) for by, to in hops if site_of[by] != site_of[to]]
        assert len(crossing) == len(ranks) - 1
        assert {by for by, _ in crossing} <= {source}
        # Who hands it on has it from the source itself: two hops at most.
        assert {by for by, _ in hops} <= {source} | {to for by, to in hops if by == source}
        assert sites.times_handed_over[source] == len({source} | {by for by, _ in hops})
    for there in ranks:  # messages that come from another site are spread
        for site in (each for each in ranks if each is not there):
            straight = [to for source, by, to in sites.hops.tolist() if source == by and source in site]
            got = [straight.count(rank) for rank in there]
            assert max(got) - min(got) <= 1


def test_bytes_over_links_are_those_of_every_hop() -> None:
    """Worked out by hand: 0 and 1 here, 2, 3 and 4 there; worker r's message has 10^r bytes."""
    links = Sites.of([[0, 1], [4, 3, 2]], 5).over_links(10 ** np.arange(5))
    assert links.tolist() == [
        [0, 101 + 10000, 1, 0, 0],
        [1010, 0, 0, 10, 0],
        [100, 0, 0, 101, 101],
        [0, 1000, 1010, 0, 1010],
        [10000, 0, 10000, 10000, 0],
    ]


def test_one_site_sends_straight_to_all() -> None:
    assert Sites.one(4).over_links(np.array([1, 2, 3, 4])).tolist() == [
        [0, 1, 1, 1],
        [2, 0, 2, 2],
        [3, 3, 0, 3],
        [4, 4, 4, 0],
    ]
    assert Sites.one(4).times_handed_over.tolist() == [1] * 4


def test_sites_are_alike_in_whatever_order_they_are_given() -> None:
    assert Sites.of([[3, 2], [1, 0]], 4) == Sites.of([[0, 1], [2, 3]], 4)
    assert Sites.by_place(["b", "a", "b", "a"]) == Sites.of([[0, 2], [1, 3]], 4)
    assert str(Sites.of([[2], [1, 0]], 3)) == "[[0, 1], [2]]"


@pytest.mark.parametrize(
    ("ranks", "problem"),
    [
        ([[0, 1]], "2, 3 in no site"),
        ([[0, 1], [1, 2, 3]], "1 in more than one place"),
        ([[0, 1], [2, 3, 4]], "4 of no worker"),
        ([[0, 1, 2, 3], []], "a site without workers"),
        ([], "0, 1, 2, 3 in no site"),
    ],
)
def test_what_is_no_partition_is_refused(ranks: list[list[int]], problem: str) -> None:
    with pytest.raises(ValueError, match=rf"^sites = .*: {problem}; with 4 workers each of the ranks 0 to 3"):
        Sites.of(ranks, 4)
