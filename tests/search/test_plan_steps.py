"""Steps against timelines worked out by hand, and the plan's ranking, memory and words."""

import io
import re

import pytest
import yaml
from rich.console import Console
from specs import digits as spec_of_digits

from taugrad.compressors import Outer
from taugrad.compressors.methods import read_config
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.synchronization import AsyncSync, GradientsSync, HybridSync, WeightsSync
from taugrad.search.advice import METHODS, RECIPES, USUAL
from taugrad.search.plan import table
from taugrad.search.plan.bandwidth import SHARES, needs, rate_for, whatever_rate
from taugrad.search.plan.calibrated import HALF, Bucket, BucketWork, Calibration, MethodWork
from taugrad.search.plan.candidate import Candidate
from taugrad.search.plan.candidates import candidates_of, changes, compared_candidates
from taugrad.search.plan.link import Link, Trunk
from taugrad.search.plan.planning import plan
from taugrad.search.plan.run_plan import check_plannable
from taugrad.search.plan.step_model import step_time, worker_bytes

MEGABYTE_A_SECOND = Link(rate=8e6, headers=0.0)
SPARSE = "strom(density(0.01)) | golomb_rice"


def work(*buckets, **fields):
    keys = ("compress_s", "read_s", "fill_s", "nbytes")
    return MethodWork(
        buckets=tuple(BucketWork(**dict(zip(keys, bucket, strict=True))) for bucket in buckets), **fields
    )


DENSE = work((0, 0, 0, 4e5), (0, 0, 0, 4e5), all_reduces=1)
NARROW = work((0.001, 0, 0.001, 2e5), (0.001, 0, 0.001, 2e5), all_reduces=1, half=True)
FEW = work((0.01, 0.002, 0.001, 1e4), (0.02, 0.004, 0.003, 2e4), kept_bytes=8e5)
CALIBRATION = Calibration(
    batch=8,
    steps_an_epoch=100,
    compute_s=0.5,
    optimizer_s=0.1,
    buckets=(Bucket(elements=100_000, ready_s=0.3), Bucket(elements=100_000, ready_s=0.4)),
    optimizer_bytes=8e5,
    reduce_s=0.0,
    reduce_half_s=0.0,
    methods={"none": DENSE, HALF: NARROW, SPARSE: FEW},
)
"""200,000 parameters in two buckets; backward ends at 0.4 s."""


def seconds(method, link, workers, sync=None):
    return step_time(CALIBRATION, method, sync or GradientsSync(), link, workers).seconds


MB, SLOWER = MEGABYTE_A_SECOND, Link(rate=8e4, delay=0.2, headers=0.0)
BY_HAND = [
    # Each bucket is 400 kB on the link. Ready at 0.3: 0.3 to 0.7; then 0.7 to 1.1; optimizer 0.1.
    (DENSE, GradientsSync(), MB, 2, 1.2),
    # At 100 MB/s only the last bucket's 4 ms are seen.
    (DENSE, GradientsSync(), Link(rate=8e8, headers=0.0), 2, 0.504),
    # Who blocks: 0.3 to 0.7 on the link, 0.1 of backward pass, 0.4 on the link, 0.1 of optimizer.
    (DENSE.model_copy(update={"blocks": True}), GradientsSync(), MB, 2, 1.3),
    # Compress to 0.31; 20 kB on the link to 0.33. Second: ready at 0.41, compressed at 0.43, 40 kB to 0.47.
    # First read 0.43 .. 0.437; second 0.47 + 0.003 + 3 * 0.004; optimizer 0.1.
    (FEW, GradientsSync(), MB, 3, 0.47 + 0.015 + 0.1),
    # Shards: half out, half back: 10 kB to 0.32, and 20 kB from 0.43 to 0.45. Half of the sum is compressed:
    # first 0.43 .. 0.4405, second 0.45 + 0.01 + 2 * 0.004 + 1.5 * 0.003.
    (FEW, GradientsSync(pattern="sharded"), MB, 2, 0.45 + 0.0225 + 0.1),
    # The server takes in and sends 3 x 20 kB to 0.55; then the second sum: 0.02 + 5 * 0.004 + 2 * 0.003.
    (FEW, GradientsSync(pattern="parameter_server"), MB, 4, 0.55 + 0.046 + 0.1),
    # 6 hops of 100 kB a bucket: 0.3 to 0.9, then to 1.5.
    (DENSE, GradientsSync(pattern="ring"), MB, 4, 1.6),
    # Local steps share an exchange; by default an epoch's 100.
    *((FEW, WeightsSync(every=n), MB, 2, 0.5 + (0.06 + 2 * 0.006 + 0.004) / (n or 100)) for n in (1, 32, 0)),
    # 3 others: 90 kB take 0.09 s; the processor 0.5 + 0.03 + 3 * 0.006 + 0.004. Then the link binds.
    (FEW, AsyncSync(), MB, 4, 0.552),
    (FEW, AsyncSync(), SLOWER, 4, 9.0),
]


@pytest.mark.parametrize(("method", "sync", "link", "workers", "expected"), BY_HAND)
def test_a_step_takes_what_its_timeline_by_hand_takes(method, sync, link, workers, expected):
    actual = step_time(CALIBRATION, method, sync, link, workers)
    assert actual.seconds == pytest.approx(expected, abs=1e-3)
    assert actual.utilization == pytest.approx(0.5 / expected, abs=1e-2)
    if method is FEW and sync == GradientsSync():
        assert actual.received == pytest.approx(2 * 3e4)


def test_islands_exchange_shards_of_what_is_reduced_inside():
    # 2 islands of 2: half of the work for each. Compressed at 0.305, 5 kB to 0.31; compressed at 0.415, 10 kB
    # to 0.425; read in half of 0.003 + 2 * 0.004; half of the optimizer.
    pairs = GradientsSync(island=2)
    result = step_time(CALIBRATION, FEW, pairs, MEGABYTE_A_SECOND, 4)
    assert result.seconds == pytest.approx(0.425 + 0.0055 + 0.05, abs=1e-4)
    assert result.utilization == pytest.approx(0.45 / result.seconds)
    assert result.received == pytest.approx(1.5e4)
    # Inside, a bucket of 400 kB takes 20 ms at 10 MB/s: all before the forward pass, each before the backward
    # pass and after it. 2 shards share 1 MB/s between sites. Compressed at 0.385 and 0.535; 20 kB come at
    # 0.555.
    sites = Link(rate=8e7, headers=0.0, trunk=Trunk(link=MEGABYTE_A_SECOND))
    by_host = GradientsSync(island="host")
    assert seconds(FEW, sites, 4, by_host) == pytest.approx(0.555 + 0.0055 + 0.05, abs=1e-4)
    narrow = by_host.model_copy(update={"island_reduce": "bf16"})
    assert seconds(FEW, sites, 4, narrow) == pytest.approx(0.535 + 0.0055 + 0.05, abs=1e-4)
    # Whole shards: 2 of 200 kB, one after the other on the sites' link, from 0.38 on; 0.4 s a bucket.
    assert seconds(DENSE, sites, 4, pairs) == pytest.approx(0.38 + 0.8 + 0.05, abs=1e-4)
    # A rate for islands is of the link between them.
    assert rate_for(CALIBRATION, Candidate(SPARSE, pairs), sites, 4, 0.5) < 8e5
    assert rate_for(CALIBRATION, Candidate(SPARSE, pairs), sites, 4, 0.9) is None  # the passes inside


def test_islands_are_compared_where_there_are_sites_or_the_spec_has_them():
    def islands(spec, **fields):
        return {
            candidate.method: candidate
            for candidate in compared_candidates(spec, **fields)
            if "islands" in candidate.mode
        }

    plain = RunSpec(compressor="linear(8)", workers={"count": 4})
    assert not islands(plain)
    result = islands(plain, sites=True)
    assert {"none", "linear", "linear(bits=4)"} <= result.keys()
    assert {candidate.mode for candidate in result.values()} == {"islands by host"}
    assert not result["none"].compresses
    with_islands = RunSpec.model_validate({**plain.model_dump(), "sync": {"mode": "gradients", "island": 2}})
    pairs = islands(with_islands, methods=["linear(bits=4)"])
    assert {str(pair) for pair in pairs.values()} == {
        *("none (islands of 2)", "linear (islands of 2)", "linear(bits=4) (islands of 2)")
    }
    given = CALIBRATION.model_copy(
        update={"methods": {**CALIBRATION.methods, "linear": FEW, "linear(bits=4)": FEW}}
    )
    rows = plan(given, compared_candidates(with_islands, ["linear(bits=4)"]), [MEGABYTE_A_SECOND], [2, 3, 4])
    counts = [sum("islands" in row.mode for row in comparison.candidates) for comparison in rows]
    assert counts == [0, 0, 3]  # one island of 2; 3 are no islands
    memory = {str(row): row.memory for row in rows[2].candidates}
    assert (
        memory["linear (islands of 2)"]
        == 8e5 + (3 * 8e5 + 8e5 + 8e5 + 2 * 3e4) / 2
        < memory["linear(bits=4)"]
    )


@pytest.mark.parametrize(
    ("rate", "delay", "waited"),
    [
        (8e6, 0.2, 0.0),  # 15 kB and 0.2 s are hidden by a step of 0.5 s
        (8e6, 0.8, 0.8 + 0.015 - 0.5),
        (8e4, 0.0, 1.5 - 0.5),
    ],
)
def test_a_delay_hides_what_computing_takes(rate, delay, waited):
    """Two fragments in turn, each every 4 steps, which arrive a step later."""
    link = Link(rate=rate, delay=delay, headers=0.0)
    late = seconds(FEW, link, 2, WeightsSync(every=4, fragments=2, delay_steps=1))
    compute_s = (0.03 + 2 * 0.006 + 0.004) / 4
    assert late == pytest.approx(0.5 + compute_s + waited / 2, abs=1e-2)
    whole, halves = (seconds(FEW, link, 2, WeightsSync(every=4, fragments=value)) for value in (1, 2))
    assert halves - whole == pytest.approx(delay / 4, abs=1e-2)  # two delays in place of one


def test_a_mode_without_a_model_is_refused():
    with pytest.raises(ValueError, match=r"sync\.mode = hybrid"):
        seconds(FEW, MEGABYTE_A_SECOND, 2, HybridSync())
    encrypted = spec_of_digits(compressor="wgt(0.1)", sync={"mode": "gradients", "authenticated": True})
    with pytest.raises(SpecError, match=r"sync\.authenticated = true"):
        check_plannable(encrypted, "spec.yaml")


def test_between_sites_messages_cross_once():
    trunk = Trunk(link=Link(rate=8e4, headers=0.0), sites=2)  # 10 kB/s
    link = MEGABYTE_A_SECOND.model_copy(update={"trunk": trunk})
    once = GradientsSync(pattern="hierarchical")
    # 4 x 4 workers: of each site 4 messages of 30 kB go to 4 workers over there, or to one
    assert seconds(FEW, link, 8) - seconds(FEW, link, 8, once) == pytest.approx(16 * 3 - 4 * 3, rel=0.01)
    local = [WeightsSync(every=4, pattern=pattern) for pattern in ("allgather", "hierarchical")]
    straight, by_site = (seconds(FEW, link, 8, candidate) for candidate in local)
    assert straight - by_site == pytest.approx((16 * 3 - 4 * 3) / 4, rel=0.01)
    candidates = compared_candidates(RunSpec(), [SPARSE], sites=True)
    sparse = candidates[-1].method
    modes = [candidate.mode for candidate in candidates if candidate.method == sparse]
    assert modes == ["allgather", "hierarchical", "islands by host"]
    known = CALIBRATION.model_copy(update={"methods": {**CALIBRATION.methods, sparse: FEW}})
    (comparison,) = plan(known, candidates, [link], [8])
    results = [prediction.mode for prediction in comparison.candidates if prediction.method == sparse]
    assert results == modes[::-1]
    assert comparison.best.mode == "islands by host"
    assert "At 8mbit,0ms; 2 sites, 80kbit,0ms between, 8 workers: " in table.sentence(comparison)


def test_memory_counts_what_the_way_to_train_keeps():
    whole = 4 * 200_000
    # weights, gradients, buckets; the optimizer; what is all-reduced
    assert worker_bytes(CALIBRATION, DENSE, GradientsSync(), 8) == 3 * whole + 8e5 + 8e5
    # residuals; 8 messages
    assert worker_bytes(CALIBRATION, FEW, GradientsSync(), 8) == 3 * whole + 8e5 + 8e5 + 8 * 3e4
    local = [
        worker_bytes(CALIBRATION, FEW, WeightsSync(every=8, outer=outer), 8)
        for outer in (Outer(), Outer(momentum=0.9))
    ]
    assert local[1] - local[0] == whole
    # weights, gradients, what was agreed on, the difference; 8 messages
    assert local[0] == 4 * whole + 8e5 + 8e5 + 8 * 3e4


def candidates():
    return [Candidate(line, GradientsSync()) for line in ("none", HALF, SPARSE)]


def test_the_plan_says_where_compression_pays_and_where_it_does_not():
    slow, fast = plan(CALIBRATION, candidates(), [Link(rate=1e7), Link(rate=1e11)], [4])
    assert slow.pays
    assert slow.best.method == SPARSE
    factor = slow.of(HALF).seconds / slow.best.seconds
    assert f"{factor:.3g} times faster than {HALF}" in table.sentence(slow)
    assert not fast.pays
    assert fast.best.method == "none"
    assert "compression does not pay: none" in table.sentence(fast)
    assert f"the fastest to a target that compresses is {SPARSE}" in table.sentence(fast)


TRUNK = Trunk(link=Link(rate=1e6, delay=0.005, loss=0.001))


@pytest.mark.parametrize("trunk", [None, TRUNK])
def test_at_the_tabulated_rate_the_plan_computes_for_the_share(trunk):
    links = [Link(rate=rate, delay=0.001, trunk=trunk) for rate in (1e8, 1e9)]
    if trunk is None:
        links.append(Link(rate=1e8, delay=0.002))
    syncs = [GradientsSync(), GradientsSync(pattern="hierarchical"), WeightsSync(every=4), AsyncSync()]
    ways = [*candidates(), *(Candidate(SPARSE, sync) for sync in syncs[1:])]
    comparisons = plan(CALIBRATION, ways, links, [2, 8])
    needed = whatever_rate(comparisons)
    assert len(needed) == 4  # two delays, or two rates of the workers' own links beside the trunk
    for comparison in needed:
        for way, rates in needs(CALIBRATION, comparison):
            reached = [rate for rate in rates if rate is not None]
            assert reached == sorted(reached) != []
            assert rates[: len(reached)] == tuple(reached)  # what is out of reach stays so
            for share, rate in zip(SHARES, reached, strict=False):
                link = comparison.link.model_copy(update={"rate": rate})
                if trunk is not None:
                    between = trunk.link.model_copy(update={"rate": rate})
                    link = comparison.link.model_copy(update={"trunk": Trunk(link=between)})
                work = CALIBRATION.methods[way.method]
                step = step_time(CALIBRATION, work, way.sync, link, comparison.workers)
                assert step.utilization == pytest.approx(share, rel=1e-6)
    # Each step's delay of 1 ms and the time to compress leave less than 99%, however fast the link is.
    assert any(None in rates for _, rates in needs(CALIBRATION, needed[0]))
    rates = [table.rates_of(CALIBRATION, comparison) for comparison in needed]
    lines = table.markdown(comparisons, rates).split("\n## ")[-1].splitlines()
    assert ("Mbit/s of each site's link" if trunk else "Mbit/s of each worker's link") in lines[0]
    assert any("never" in line for line in lines)


def test_candidates_are_the_specs_own_both_all_reduces_and_others():
    spec = RunSpec.model_validate(
        {"compressor": "wgt(0.001)", "sync": {"mode": "gradients", "pattern": "sharded"}}
    )
    result = compared_candidates(spec)
    assert [(candidate.method, candidate.mode) for candidate in result[:3]] == [
        ("wgt(tau=0.001)", "sharded"),
        ("none", "all-reduce"),
        (HALF, "all-reduce"),
    ]
    assert len(set(map(str, result))) == len(result)
    local = {candidate.sync.every for candidate in result if isinstance(candidate.sync, WeightsSync)}
    assert local == {setting.every for setting in RECIPES if setting.every}
    assert {2, 4, 10} <= local
    assert "chunked_topk | chunked (weights every 4 steps, allgather)" in map(str, result)  # SparseLoCo's
    assert [candidate.method for candidate in compared_candidates(RunSpec(), ["bgt(0.01)"])] == [
        "none",
        HALF,
        "bgt(tau=0.01)",
    ]
    with pytest.raises(ValueError, match="nonsense"):
        compared_candidates(RunSpec(), ["nonsense"])


def gpt(**fields):
    training = {"batch_per_worker": 8, "optimizer": {"kind": "adamw", "lr": 0.001}}
    return RunSpec.model_validate({"training": training, "workers": {"count": 4}} | fields)


def measured(candidates, density_bytes):
    """Messages of so many bytes at a density of 1; others send every element in a byte."""

    def size(line):
        match = re.search(r"target=([0-9.]+)", line)
        return density_bytes * float(match[1]) if match else 4e5

    halves = {candidate.method: (0, 0, 0, size(candidate.method) / 2) for candidate in candidates}
    works = {line: work(half, half) for line, half in halves.items()}
    return CALIBRATION.model_copy(update={"methods": works | {"none": DENSE, HALF: NARROW}})


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_headline_is_the_pages_method_and_its_lines_are_filled_in(optimizer):
    """4 workers, 100 Mbit, 30 ms: as docs/choose.md has it, with this spec's rate and workers."""
    spec = gpt(training={"batch_per_worker": 8, "optimizer": {"kind": optimizer, "lr": 0.003}})
    result = compared_candidates(spec)
    (comparison,) = plan(measured(result, 1e5), result, [Link(rate=1e8, delay=0.03)], [16])
    best = comparison.best
    assert best.usual
    fastest = min(comparison.candidates, key=lambda candidate: candidate.to_target)
    assert fastest is not best
    assert f"{fastest} may be {table.number(best.to_target / fastest.to_target)} times" in (
        table.sentence(comparison)
    )
    narrow = Console(width=80, file=io.StringIO())
    narrow.print(table.steps_of(comparison))
    assert all(table.number(each.seconds) in narrow.file.getvalue() for each in comparison.candidates)
    (way,) = [candidate for candidate in candidates_of(spec, 16) if str(candidate) == str(best)]
    said = yaml.safe_load("\n".join(changes(spec, way.spec)))
    assert said["sync"] == {"mode": "weights", "every": 4, "unsent": 0.0625}
    _, adaptive, sgd = METHODS
    box = (sgd if optimizer == "sgd" else adaptive).fields  # filled in for 4 workers
    assert said["sync"] | {"unsent": 0.25} == box["sync"]
    assert read_config(said["compressor"]) == read_config(box["compressor"]) == read_config(USUAL.line)
    assert said.keys() == box.keys()
    if optimizer == "adamw":
        assert said["training"] == {"optimizer": {"kind": "adamw", "lr": 0.012}}
    else:
        assert "training" not in said
