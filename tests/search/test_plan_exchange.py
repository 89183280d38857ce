"""Links as people write them; seconds of an exchange, by hand and against a simulation of every message."""

import itertools
import math

import pytest

from taugrad.search.plan import exchange_model as model
from taugrad.search.plan.link import Link, Trunk

PLAIN = Link(rate=8e6, delay=0.0, headers=0.0)
"""1 MB/s."""
LONG = Link(rate=8e6, delay=0.05, headers=0.0)
WORKERS = (2, 3, 4, 16, 1000)


def simulated_ring(workers: int, nbytes: float, rate: float, delay: float) -> float:
    """Gloo's ring all-reduce, message by message: when the last worker has everything.

    A segment leaves when its sender has come to it, the receiver's word that it is ready has arrived, and the
    link is free. A worker comes to segment i when it has received and sent segment i - 2, and it must have
    received what it passes on.
    """
    a_chunk = math.ceil(max(math.ceil(nbytes / 2**20), 2 * workers) / workers)
    size = nbytes / (a_chunk * workers)
    begun = [0.0] * workers
    for _ in range(2):  # to sum, and to hand the sums round
        count = a_chunk * (workers - 1)
        came = [[0.0] * count for _ in range(workers)]
        left = [[0.0] * count for _ in range(workers)]
        free = list(begun)

        for segment in range(count):
            reached = [max(came[w][segment - 2], left[w][segment - 2]) for w in range(workers)]
            if segment < 2:
                reached = begun
            for worker in range(workers):
                to = (worker + 1) % workers
                has = came[worker][segment - a_chunk] if segment >= a_chunk else begun[worker]
                start = max(reached[worker], has, reached[to] + delay, free[worker])
                free[worker] = left[worker][segment] = start + size / rate
            for worker in range(workers):
                came[(worker + 1) % workers][segment] = left[worker][segment] + delay
        begun = [max(came[worker][-1], left[worker][-1]) for worker in range(workers)]
    return max(begun)


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_an_all_reduce_takes_what_its_messages_take(workers):
    for nbytes, rate, delay in itertools.product((4e4, 3e6, 3e7), (1e6, 1.2e7, 1.2e8), (0.0, 1e-3, 0.05)):
        link = Link(rate=8 * rate, delay=delay, headers=0.0)
        seconds = model.all_reduce(link, workers, nbytes)
        case = f"{nbytes:g} bytes, {link}"
        assert seconds.seconds == pytest.approx(simulated_ring(workers, nbytes, rate, delay), rel=1e-9), case
        assert seconds.link_s == pytest.approx(2 * (workers - 1) / workers * nbytes / rate), case
        assert seconds.received == pytest.approx(2 * (workers - 1) / workers * nbytes), case


TRUNK = Link(rate=8e5, delay=0.05, headers=0.0)
TWO_SITES = PLAIN.model_copy(update={"trunk": Trunk(link=TRUNK, sites=2)})
"""1 MB/s each, and 0.1 MB/s from site to site."""
BY_HAND = {
    # 3 others x 100 kB at 1 MB/s, and the delay of the last byte
    "all to all": (model.to_all(LONG, 4, 1e5), 0.3 + 0.05),
    # Half of each worker's 200 kB goes out, half of the sum's 100 kB comes back.
    "sharded": (model.sharded(PLAIN, 2, 2e5, 1e5), 0.1 + 0.05),
    "sharded, a delay out and one back": (
        model.sharded(LONG, 2, 2e5, 1e5),
        (100_000 + 50_000) / 1e6 + 2 * 0.05,
    ),
    # The server takes in 3 x 200 kB, then sends 3 x 100 kB.
    "parameter server": (model.parameter_server(PLAIN, 4, 2e5, 1e5), 0.6 + 0.3),
    # 2 (N - 1) = 6 hops of 25 kB
    "ring": (model.ring(LONG, 4, 1e5), 6 * (25e3 / 1e6 + 0.05)),
    # 2 x 2 workers: 2 send 100 kB to 2 each over 0.1 MB/s, or to one each
    "all to all between sites": (model.to_all(TWO_SITES, 4, 1e5), 4 + 0.05),
    "once between sites": (model.between_sites(TWO_SITES, 4, 1e5), 2 + 0.05),
    # worker 0 takes in 2 x 200 kB from the other site, and sends 2 x 100 kB there
    "parameter server between sites": (model.parameter_server(TWO_SITES, 4, 2e5, 1e5), 4 + 2 + 2 * 0.05),
    # each owner's 25 kB, from 2 to 2 workers, there and back
    "sharded between sites": (model.sharded(TWO_SITES, 4, 1e5, 1e5), 1 + 1 + 2 * 0.05),
    "all-reduce between sites": (
        model.all_reduce(TWO_SITES, 4, 1e5),
        model.all_reduce(TRUNK, 4, 1e5).seconds,
    ),
    # within a site nothing is slow
    "one site": (model.between_sites(PLAIN, 4, 1e5), 0.3),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_an_exchange_takes_what_it_takes_by_hand(name):
    result, seconds = BY_HAND[name]
    assert result.seconds == pytest.approx(seconds, rel=2e-3)


EXCHANGES = {
    "all_reduce": lambda link, n: model.all_reduce(link, n, 1e7),
    "exact": lambda link, n: model.gathered(link, n, 1e5),
    "sharded": lambda link, n: model.sharded(link, n, 1e5, 1e5),
    "parameter_server": lambda link, n: model.parameter_server(link, n, 1e5, 1e5),
    "ring": lambda link, n: model.ring(link, n, 1e5),
    "hierarchical": lambda link, n: model.gathered(link, n, 1e5, "hierarchical"),
}


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_more_bandwidth_and_less_delay_are_never_slower_and_more_workers_never_faster(exchange):
    for workers in WORKERS:
        by_rate = [exchange(Link(rate=r, delay=0.01), workers).seconds for r in (1e6, 1e7, 1e8, 1e9, 1e10)]
        assert all(fast <= slow for slow, fast in itertools.pairwise(by_rate))
        by_delay = [exchange(Link(rate=1e8, delay=d), workers).seconds for d in (0.0, 1e-4, 0.01, 0.1)]
        assert all(near < far for near, far in itertools.pairwise(by_delay))
    for link in (PLAIN, LONG):
        seconds = [exchange(link, workers).seconds for workers in (1, *WORKERS)]
        assert seconds[0] == 0
        assert all(few <= many for few, many in itertools.pairwise(seconds))


# Links as people write them


@pytest.mark.parametrize(
    ("text", "rate", "delay", "loss"),
    [
        ("100mbit", 1e8, 0, 0),
        ("1gbit", 1e9, 0, 0),
        ("50mbit,10ms,0.1%", 5e7, 0.01, 0.001),
        ("512 kbit, 250us", 5.12e5, 2.5e-4, 0),
        ("2.5GBIT,1s", 2.5e9, 1, 0),
    ],
)
def test_a_link_is_rate_delay_and_loss(text, rate, delay, loss):
    link = Link.parse(text)
    assert (link.rate, link.delay, link.loss) == pytest.approx((rate, delay, loss))
    assert Link.parse(str(link)) == link


def test_loss_limits_a_connection_and_not_the_link():
    # Mathis et al.: 1448 bytes * sqrt(3/2) / (0.1 s * sqrt(0.01)) = 177 kB/s
    link = Link.parse("100mbit,50ms,1%")
    assert link.payload_rate() == pytest.approx(177_343, rel=1e-3)
    assert link.payload_rate(3) == pytest.approx(3 * 177_343, rel=1e-3)
    assert link.payload_rate(1000) == pytest.approx(1e8 * 0.95 / 8)
