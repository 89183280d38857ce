"""Every mode of synchronization, with real workers and with simulated ones.

Legend: N = 3 workers, P parameters, T iterations.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import in_turn
from forked import run_workers

from taugrad.platform.spec import RunSpec

WORKERS, EXAMPLES, BATCH, EPOCHS = 3, 250, 30, 2  # the last batch of an epoch has 10: uneven among 3
ITERATIONS, MIDDLE = 18, 7
PARAMETERS = 16 * 12 + 12 + 12 * 10 + 10
BASE: dict[str, Any] = {
    "data": {"kind": "synthetic", "train_examples": EXAMPLES, "test_examples": 101, "height": 4, "width": 4},
    "model": {"kind": "mlp", "widths": [12], "activation": "tanh"},
    "training": {
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3},
    },
    "tracking": {"flush_interval": 4, "layer_interval": 5},
    "checkpoint": {"interval": MIDDLE},
    "workers": {"count": WORKERS},
}
NO_MOMENTUM = {"training": BASE["training"] | {"optimizer": {"kind": "sgd", "lr": 0.3, "momentum": 0}}}
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
MODES: dict[str, dict[str, Any]] = {
    "ring": {"mode": "ring"},
    "server": {"mode": "parameter_server"},
    "sharded": {"mode": "sharded"},
    "sharded, other way back": {"mode": "sharded", "back": "linear(8)"},
    "differences": {"mode": "weights", "every": 4},
    "differences, by epoch, sharded": {"mode": "weights", "pattern": "sharded", "outer": OUTER},
    "differences, ring": {"mode": "weights", "every": 3, "pattern": "ring"},
}
LINES = [
    "none",
    "wgt(0.01)",
    "topk(0.2) | quantile(4, block=32)",
    "linear(5, exempt=exempt(names=['*.bias']))",
]
STROM = "strom(density(0.1)) | golomb_rice"
DEFAULT_FORM = f"allgather: {STROM}"
HIERARCHICAL = {"mode": "allgather", "exchange": "hierarchical"}
BETWEEN_SITES = "hierarchical: strom"
CLIPPED_BETWEEN_SITES = "hierarchical: clipped"
LOCAL_BETWEEN_SITES = "differences, hierarchical: wgt"
RULES = [
    "wgt(0.01, clip=clip(2))",
    "bgt(0.03)",
    "qgt(0.01, decay=0.9)",
    "strom(layers(0.02, patterns={'*.bias': 0.005}))",
    STROM,
    "topk(0.1, sampled=True)",
    "chunked_topk(8, chunk=64) | linear(4)",
    "quantile(4, block=64) | huffman",
    "entropy(floor=2)",
    "entropy(form='rms', floor=4)",
    "fp16",
    "bf16(decay=0)",
    "fp8",
]
WEIGHTS = {
    "weights": {"mode": "weights", "exchange": "weights", "every": 5},
    "weights, master": {"mode": "weights", "exchange": "weights", "pattern": "parameter_server"},
}
SPECS: dict[str, dict[str, Any]] = {
    **{
        f"{mode}: {line}": BASE | {"sync": MODES[mode], "compressor": line}
        for mode in MODES
        for line in LINES
    },
    **{f"allgather: {line}": BASE | {"compressor": line} for line in RULES},
    BETWEEN_SITES: BASE
    | {
        "sync": HIERARCHICAL | {"sites": [[0, 2], [1]]},
        "compressor": STROM,
    },
    "allgather: momentum": BASE | NO_MOMENTUM | {"compressor": "topk(0.1, momentum=0.9, warmup=warmup(5))"},
    "allgather: bf16, in parts": BASE
    | {"training": BASE["training"] | {"precision": "bf16", "accumulate": 3}, "compressor": "wgt(0.01)"},
    "allgather: fp16": BASE
    | {"training": BASE["training"] | {"precision": "fp16"}, "compressor": "wgt(0.01)"},
    "allgather: clipped": BASE
    | {"training": BASE["training"] | {"clip": {"norm": 0.5, "of": "worker"}}, "compressor": STROM},
    "sharded: fp16, clipped": BASE
    | {
        "training": BASE["training"] | {"clip": {"norm": 0.5}, "precision": "fp16"},
        "sync": {"mode": "sharded"},
        "compressor": "wgt(0.01)",
    },
    "differences: fp16, clipped": BASE
    | {
        "training": BASE["training"] | {"clip": {"norm": 0.5, "of": "worker"}, "precision": "fp16"},
        "sync": MODES["differences"],
        "compressor": "wgt(0.01)",
    },
    "allgather: by iterations": BASE
    | {
        "training": BASE["training"]
        | {
            "iterations": ITERATIONS,
            "evaluate_every": 6,
            "schedule": {"kind": "cosine"},
            "batch_per_worker": 9,
        },
        "compressor": STROM,
    },
    CLIPPED_BETWEEN_SITES: BASE
    | {
        "training": BASE["training"] | {"clip": {"norm": 0.5, "of": "worker"}},
        "sync": HIERARCHICAL | {"sites": [[0, 2], [1]]},
        "compressor": STROM,
    },
    LOCAL_BETWEEN_SITES: BASE
    | {
        "sync": {"mode": "weights", "every": 4, "pattern": "hierarchical", "sites": [[0, 2], [1]]},
        "compressor": "wgt(0.01)",
    },
    "differences: unsent": BASE
    | {"sync": {"mode": "weights", "every": 4, "unsent": 0.5}, "compressor": STROM},
    "differences, sharded: unsent": BASE
    | {
        "sync": {"mode": "weights", "every": 3, "pattern": "sharded", "unsent": 1},
        "compressor": "wgt(0.01, exempt=exempt(names=['*.bias']))",
    },
    "sharded: momentum": BASE
    | NO_MOMENTUM
    | {"sync": {"mode": "sharded"}, "compressor": "strom(density(0.2), momentum=0.9)"},
    # An epoch's last batch has 2 examples for 3 workers.
    "differences: wgt, 31": BASE
    | {"training": BASE["training"] | {"batch_size": 31}}
    | {"sync": MODES["differences"], "compressor": "wgt(0.01)"},
    **{f"{name}: none": BASE | {"sync": sync} for name, sync in WEIGHTS.items()},
    "weights: rms": BASE | {"sync": WEIGHTS["weights, master"], "compressor": "entropy(form='rms', floor=6)"},
    **{
        f"{name}: entropy": BASE | {"sync": sync, "compressor": "entropy(4)"}
        for name, sync in WEIGHTS.items()
    },
}
CLIPPED = "allgather: clipped"  # a worker's gradient must be whole first: rounds after the backward pass
IN_ROUNDS = [CLIPPED, CLIPPED_BETWEEN_SITES] + [
    name for name, spec in SPECS.items() if spec.get("sync", {"mode": "allgather"})["mode"] != "allgather"
]
TIMEOUT_S = 600

Result = dict[str, Any]


def train(specs: dict[str, dict[str, Any]], processes: int, folder: Path) -> list[dict[str, Result]]:
    """Each process's results, by name."""
    folder.mkdir()
    (folder / "specs.json").write_text(json.dumps(specs))
    script = Path(__file__).with_name("sync_process.py")
    run_workers(script, lambda rank: (rank, processes, folder), processes, timeout_s=TIMEOUT_S)
    return [torch.load(folder / f"result_{rank}.pt", weights_only=True) for rank in range(processes)]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    specs = SPECS | {"allgather: none": BASE}
    return train(specs, WORKERS, tmp_path_factory.mktemp("real") / "runs")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    specs = {
        name: spec | {"sync": {"mode": "simulated", "of": spec.get("sync", {"mode": "allgather"})}}
        for name, spec in (SPECS | {"allgather: none": BASE}).items()
    }
    (found,) = train(specs, 1, tmp_path_factory.mktemp("simulated") / "runs")
    return found


every_spec = in_turn("name", SPECS)


def same(one: Result, other: Result) -> bool:
    return all(torch.equal(each, other["weights"][key]) for key, each in one["weights"].items())


@every_spec
def test_replicas_are_alike_to_the_bit(name, real):
    assert all(same(real[0][name], worker[name]) for worker in real[1:])


@every_spec
def test_simulated_workers_end_with_the_bits_of_real_ones(name, real, simulated):
    assert same(real[0][name], simulated[name])
    assert real[0][name]["totals"] == simulated[name]["totals"]
    assert real[0][name]["evaluations"] == simulated[name]["evaluations"]
    for (step, there), (other, here) in zip(real[0][name]["logged"], simulated[name]["logged"], strict=True):
        assert step == other
        # The hook's passes add squares up in an order of their own.
        assert there.get("comm/residual_rms", 0) == pytest.approx(here.get("comm/residual_rms", 0), rel=1e-5)
        assert there | {"comm/residual_rms": 0} == here | {"comm/residual_rms": 0}


def test_uncompressed_simulation_differs_only_in_the_order_of_addition(real, simulated):
    name = "allgather: none"
    assert simulated[name]["totals"] == real[0][name]["totals"]
    for key, expected in real[0][name]["weights"].items():
        torch.testing.assert_close(simulated[name]["weights"][key], expected, rtol=1e-5, atol=1e-6)


def test_uncompressed_simulation_of_two_workers_is_ddp_to_the_bit(tmp_path):
    two = BASE | {"workers": {"count": 2}}
    first, _ = train({"none": two}, 2, tmp_path / "real")
    (found,) = train({"none": two | {"sync": {"mode": "simulated"}}}, 1, tmp_path / "simulated")
    assert same(first["none"], found["none"])
    assert first["none"]["totals"] == found["none"]["totals"]


@every_spec
def test_a_run_that_goes_on_from_its_middle_ends_the_same(name, real, simulated):
    for whole in (*(worker[name] for worker in real), simulated[name]):
        assert same(whole, whole["resumed"])
        assert whole["totals"] == whole["resumed"]["totals"]
        assert whole["metrics"] == whole["resumed"]["metrics"]
    expected = [entry for entry in real[0][name]["logged"] if entry[0] > MIDDLE]
    assert real[0][name]["resumed"]["logged"] == expected


@every_spec
def test_the_loss_falls(name, real):
    losses = [metrics["train/loss"] for _, metrics in real[0][name]["logged"] if "train/loss" in metrics]
    assert len(losses) == ITERATIONS
    assert losses[0] == pytest.approx(math.log(10), abs=0.8)
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])


@in_turn("name", IN_ROUNDS)
def test_links_carry_what_the_carrier_was_handed(name, real):
    sent_bytes, sent_messages = (sent_by_rank(real, name, what) for what in ("bytes", "messages"))
    for rank, worker in enumerate(real):
        found = worker[name]
        assert found["sent"]["bytes"] == int(found["links"]["bytes"][rank].sum())
        assert found["sent"]["messages"] == int(sent_messages[rank].sum())
        assert torch.equal(found["link_bytes"][:, rank], sent_bytes[:, rank])  # received = sent to it
        told = found["totals"]["received_bytes"] - int(sent_bytes.sum())
        assert 0 < told <= ITERATIONS * 4 * WORKERS * (WORKERS - 1) * 8 * 6
        assert sum(each[name]["sent"]["bytes"] for each in real) == found["totals"]["received_bytes"]
        if pattern_of(name) == "ring":
            assert told == exchanges(name) * WORKERS * (WORKERS - 1) * 8 * 6  # heads, in the second half
            assert found["totals"]["wire_bytes"] == found["totals"]["received_bytes"]
        assert found["totals"]["messages"] == int(sent_messages.sum())


def sent_by_rank(real: list[dict[str, Result]], name: str, what: str) -> torch.Tensor:
    """int64 [workers, workers], from row to column as each sender knows it."""
    return torch.stack([worker[name][f"link_{what}"][rank] for rank, worker in enumerate(real)])


@in_turn("name", IN_ROUNDS)
def test_simulated_links_are_those_of_real_workers(name, real, simulated):
    for what in ("bytes", "messages"):
        assert torch.equal(sent_by_rank(real, name, what), simulated[name][f"link_{what}"])


@in_turn("name", [*IN_ROUNDS, BETWEEN_SITES])
def test_every_process_knows_all_links_and_their_sums_are_the_ledger_s(name, real, simulated):
    expected = simulated[name]["links"]
    for found in (*(worker[name] for worker in real), simulated[name]):
        for links in (found["links"], found["resumed"]["links"]):
            assert all(torch.equal(links[what], expected[what]) for what in ("bytes", "messages"))
        assert int(expected["bytes"].sum()) == found["totals"]["received_bytes"]
        assert int(expected["messages"].sum()) == found["totals"]["messages"]


@in_turn("name", IN_ROUNDS)
def test_messages_take_the_links_that_the_pattern_has(name, real):
    pattern = pattern_of(name)
    links = real[0][name]["links"]
    taken = {(i, j) for i, j in links["messages"].nonzero().tolist()}
    every = {(i, j) for i in range(WORKERS) for j in range(WORKERS) if i != j}
    expected = {
        "allgather": every,
        "sharded": every,
        "ring": {(i, (i + 1) % WORKERS) for i in range(WORKERS)},
        "parameter_server": {link for link in every if 0 in link},
        "hierarchical": every - {(1, 2)},  # 0 hands worker 1's on
    }
    assert taken == expected[pattern]
    # Numbers are told to everybody, but in a ring.
    carrying = expected["ring"] if pattern == "ring" else every
    assert {(i, j) for i, j in links["bytes"].nonzero().tolist()} == carrying


@in_turn("name", [name for name in SPECS if name not in (*IN_ROUNDS, BETWEEN_SITES)])
def test_where_the_transport_decides_about_links_none_are_told(name, real, simulated):
    assert real[0][name]["links"] is None
    assert simulated[name]["links"] is None


def test_a_worker_receives_what_all_others_hand_over(real):
    totals = real[0][DEFAULT_FORM]["totals"]
    assert totals["received_bytes"] == (WORKERS - 1) * totals["wire_bytes"]


def test_between_sites_bits_are_the_same_and_one_worker_hands_messages_on(real):
    """Of sites [0, 2] and [1] worker 1's messages go to 0, who hands them to 2."""
    totals, exact = real[0][BETWEEN_SITES]["totals"], real[0][DEFAULT_FORM]["totals"]
    assert same(real[0][BETWEEN_SITES], real[0][DEFAULT_FORM])
    assert {**totals, "wire_bytes": 0} == {**exact, "wire_bytes": 0}
    links = real[0][BETWEEN_SITES]["links"]
    assert links["messages"].tolist() == [
        [0, ITERATIONS, 2 * ITERATIONS],
        [ITERATIONS, 0, 0],
        [ITERATIONS] * 2 + [0],
    ]
    own = [int(links["bytes"][0, 1]), int(links["bytes"][1, 0]), int(links["bytes"][2, 0])]
    assert int(links["bytes"][0, 2]) == own[0] + own[1]
    assert sum(own) == exact["wire_bytes"]
    assert totals["wire_bytes"] == exact["wire_bytes"] + own[1]


@pytest.mark.parametrize(
    ("between_sites", "straight"),
    [(CLIPPED_BETWEEN_SITES, CLIPPED), (LOCAL_BETWEEN_SITES, "differences: wgt(0.01)")],
)
def test_rounds_between_sites_come_to_the_same_bits(between_sites, straight, real):
    assert same(real[0][between_sites], real[0][straight])
    assert real[0][between_sites]["totals"]["sent"] == real[0][straight]["totals"]["sent"]


def pattern_of(name: str) -> str:
    """Who sends to whom in a spec."""
    sync = SPECS[name].get("sync", {"mode": "allgather"})
    if name == CLIPPED_BETWEEN_SITES:
        return "hierarchical"
    return sync.get("pattern", "allgather") if sync["mode"] == "weights" else sync["mode"]


def exchanges(name: str) -> int:
    """How often a spec's workers exchange anything."""
    sync = SPECS[name].get("sync", {})
    if sync.get("mode") != "weights":
        return ITERATIONS
    if every := sync.get("every"):
        return math.ceil(ITERATIONS / every)
    return EPOCHS


@every_spec
def test_messages_are_as_many_as_the_pattern_has(name, real):
    a_time = {
        "allgather": WORKERS * (WORKERS - 1),
        "hierarchical": WORKERS * (WORKERS - 1),
        "ring": 2 * (WORKERS - 1) * WORKERS,
        "parameter_server": 2 * (WORKERS - 1),
        "sharded": 2 * WORKERS * (WORKERS - 1),
    }
    assert real[0][name]["totals"]["messages"] == exchanges(name) * a_time[pattern_of(name)]


@pytest.mark.parametrize("mode", ["ring", "server", "sharded"])
def test_whole_gradients_weigh_what_the_pattern_s_formula_says(mode, real):
    """Received by all workers: 2 (N - 1) P floats; headers (28 bytes) and numbers told beside them."""
    name = f"{mode}: none"
    messages = real[0][name]["totals"]["messages"]
    expected = ITERATIONS * 2 * (WORKERS - 1) * 4 * PARAMETERS
    assert int(sent_by_rank(real, name, "bytes").sum()) == expected + 28 * messages


@pytest.mark.parametrize("mode", ["ring", "server", "sharded"])
def test_without_compression_every_mode_trains_as_ddp_does(mode, real):
    for key, expected in real[0]["allgather: none"]["weights"].items():
        torch.testing.assert_close(real[0][f"{mode}: none"]["weights"][key], expected, rtol=1e-4, atol=1e-5)


def test_exchanges_take_place_every_few_steps_and_at_the_end(real):
    logged = real[0]["differences: wgt(0.01)"]["logged"]
    sending = [step for step, metrics in logged if metrics.get("comm/wire_bytes")]
    assert sending == [4, 8, 12, 16, 18]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"compressor": "powersgd", "sync": {"mode": "ring"}}, "all-reduce"),
        ({"compressor": "powersgd", "sync": {"mode": "simulated"}}, "all-reduce"),
        (
            NO_MOMENTUM | {"compressor": "topk(0.1, momentum=0.5)", "sync": {"mode": "ring"}},
            "compressor.momentum = 0.5 with sync.mode = ring",
        ),
        ({"compressor": "topk(0.1, momentum=0.5)"}, "applied twice"),
        ({"compressor": "wgt(1)", "sync": WEIGHTS["weights"]}, "compressor.kind = wgt with sync.exchange"),
        ({"compressor": "linear(reduction='sum')", "sync": WEIGHTS["weights"]}, "reduction = sum"),
        ({"compressor": "linear(nonfinite='skip')", "sync": MODES["differences"]}, "nonfinite = skip"),
        ({"sync": WEIGHTS["weights"] | {"outer": OUTER}}, "outer with sync.exchange = weights"),
        ({"sync": {"mode": "weights", "outer": {"nesterov": True}}}, "needs sync.outer.momentum"),
        ({"sync": WEIGHTS["weights"] | {"unsent": 0.5}}, "sync.unsent = 0.5 with sync.exchange = weights"),
        (
            {"sync": {"mode": "weights", "pattern": "ring", "unsent": 1}},
            "unsent = 1 with sync.pattern = ring",
        ),
        ({"sync": {"mode": "weights", "back": "fp16"}}, "only parameter_server, sharded and hybrid"),
        ({"sync": {"mode": "sharded", "back": "powersgd"}}, "powersgd"),
        (
            {"sync": {"mode": "sharded", "back": "topk(0.1, momentum=0.5)"}},
            "the sum already contains momentum",
        ),
        (
            {"sync": WEIGHTS["weights, master"] | {"back": "topk(0.1)"}},
            "weights need a method that sends every element",
        ),
        (
            {"sync": {"mode": "simulated", "of": WEIGHTS["weights"]}, "compressor": "wgt(1)"},
            "sync.of.exchange",
        ),
        ({"sync": {"mode": "allgather", "exchange": "padded"}}, "'exact' or 'hierarchical'"),
        (
            {"sync": {"mode": "allgather", "connections": 2}},
            "connections = 2: there is no such field any more; workers have one connection to each other",
        ),
        (
            {"sync": {"mode": "simulated", "of": {"mode": "sharded", "overlap": False}}},
            "overlap = False: there is no such field any more; the exchange follows the backward pass",
        ),
        ({"sync": {"mode": "parameter_server", "buckets": 4}}, "buckets = 4: there is no such field"),
        ({"sync": {"mode": "allgather", "sites": [[0, 1], [2]]}}, "sync.sites with sync.exchange = exact"),
        (
            {"sync": HIERARCHICAL | {"sites": [[0, 1], [1]]}},
            r"sync.sites = \[\[0, 1\], \[1\]\]: 2 in no site; 1 in more than one place; with 3 workers",
        ),
        (
            {"sync": HIERARCHICAL | {"sites": [[0, 1, 2, 3]]}},
            "sync.sites = .*: 3 of no worker",
        ),
        (
            {"sync": {"mode": "simulated", "of": HIERARCHICAL}},
            "sync.of.exchange = hierarchical without sync.of.sites",
        ),
        (
            {"sync": {"mode": "weights", "sites": [[0, 1], [2]]}},
            "sync.sites with sync.pattern = allgather",
        ),
        (
            {"sync": {"mode": "weights", "pattern": "hierarchical", "sites": [[0, 1]]}},
            "sync.sites = .*: 2 in no site",
        ),
        (
            {"compressor": "strom(law(0))", "sync": MODES["differences"]},
            "compressor.tau = law with sync.mode = weights: a law needs gradients",
        ),
        (
            {"compressor": "entropy(law(3))", "sync": WEIGHTS["weights"]},
            "compressor.floor = law with sync.mode = weights",
        ),
        (
            {"sync": {"mode": "simulated", "of": WEIGHTS["weights, master"] | {"back": "entropy(law(3))"}}},
            "sync.of.back.floor = law with sync.of.mode = weights",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_the_spec_is_read(changes, problem):
    with pytest.raises(ValueError, match=problem):
        RunSpec.model_validate(BASE | changes)


@pytest.mark.parametrize("mode", ["allgather", "ring", "parameter_server", "sharded"])
@pytest.mark.parametrize("line", ["strom(law(0))", "entropy(law(3))"])
def test_where_gradients_are_exchanged_a_law_is_taken(mode, line):
    for sync in ({"mode": mode}, {"mode": "simulated", "of": {"mode": mode}}):
        assert str(RunSpec.model_validate(BASE | {"compressor": line, "sync": sync}).compressor)
    if mode in ("parameter_server", "sharded"):
        RunSpec.model_validate(BASE | {"sync": {"mode": mode, "back": line}})
