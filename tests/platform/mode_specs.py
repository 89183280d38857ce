"""Small runs in every mode, and what trains them: the table that the tests of modes go by.

Legend: N = 3 workers, P parameters, T iterations.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from forked import run_workers

WORKERS, EXAMPLES, BATCH, EPOCHS = 3, 250, 30, 2  # the last batch of an epoch has 10: uneven among 3
ITERATIONS, MIDDLE = 18, 7
PARAMETERS = 16 * 12 + 12 + 12 * 10 + 10
TIMEOUT_S = 600
Spec = dict[str, Any]
Result = dict[str, Any]

BASE: Spec = {
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
STROM = "strom(density(0.1)) | golomb_rice"
SITES = [[0, 2], [1]]
HIERARCHICAL = {"mode": "allgather", "exchange": "hierarchical"}
DIFFERENCES = {"mode": "weights", "every": 4}
WEIGHTS = {"mode": "weights", "exchange": "weights", "every": 5}
BY_MASTER = WEIGHTS | {"pattern": "parameter_server"}


def training(**fields: Any) -> Spec:
    """The base's training with other fields."""
    return {"training": BASE["training"] | fields}


def clipped(**sync: Any) -> Spec:
    """A worker's gradient must be whole first: rounds after the backward pass."""
    return BASE | training(clip={"norm": 0.5, "of": "worker"}) | {"sync": sync, "compressor": STROM}


HOOKED: dict[str, Spec] = {
    **{
        f"allgather: {line}": BASE | {"sync": {"mode": "allgather"}, "compressor": line}
        for line in (
            "bgt(0.03)",
            "qgt(0.01, decay=0.9)",
            "strom(layers(0.02, patterns={'*.bias': 0.005}))",
            STROM,
            "topk(0.1, sampled=True)",
            "chunked_topk(8, chunk=64) | linear(4)",
            "quantile(4, block=64) | huffman",
            "entropy(form='rms', floor=4)",
            "bf16(decay=0)",
        )
    },
    "allgather: momentum": BASE
    | NO_MOMENTUM
    | {"sync": {"mode": "allgather"}, "compressor": "topk(0.1, momentum=0.9, warmup=warmup(5))"},
    "allgather: bf16, in parts": BASE
    | training(precision="bf16", accumulate=3)
    | {"sync": {"mode": "allgather"}, "compressor": "wgt(0.01, clip=clip(2))"},
    "allgather: fp16, by iterations": BASE
    | training(
        iterations=ITERATIONS,
        evaluate_every=6,
        schedule={"kind": "cosine"},
        batch_per_worker=9,
        precision="fp16",
    )
    | {"sync": {"mode": "allgather"}, "compressor": "wgt(0.01)"},
}
"""By the DDP hook: the transport decides about links."""
BETWEEN_SITES = "hierarchical: strom"
SITED: dict[str, Spec] = {
    BETWEEN_SITES: BASE | {"sync": HIERARCHICAL | {"sites": SITES}, "compressor": STROM}
}
IN_ROUNDS: dict[str, Spec] = {
    **{
        f"{mode}: {line}": BASE | {"sync": sync, "compressor": line}
        for mode, sync, lines in (
            ("ring", {"mode": "ring"}, ["none", "linear(5, exempt=exempt(names=['*.bias']))"]),
            ("server", {"mode": "parameter_server"}, ["none", "wgt(0.01)"]),
            ("sharded", {"mode": "sharded"}, ["none", "topk(0.2) | quantile(4, block=32)"]),
            ("sharded, other way back", {"mode": "sharded", "back": "linear(8)"}, ["wgt(0.01)"]),
            ("differences", DIFFERENCES, ["none", "wgt(0.01)"]),
            (
                "differences, by epoch, sharded",
                {"mode": "weights", "pattern": "sharded", "outer": OUTER},
                ["topk(0.2) | quantile(4, block=32)"],
            ),
            ("differences, ring", {"mode": "weights", "every": 3, "pattern": "ring"}, ["wgt(0.01)"]),
            (
                "differences, hierarchical",
                DIFFERENCES | {"pattern": "hierarchical", "sites": SITES},
                ["wgt(0.01)"],
            ),
            ("differences, unsent", DIFFERENCES | {"unsent": 0.5}, [STROM]),
            (
                "differences, late fragments",
                DIFFERENCES | {"unsent": 0.5, "fragments": 2, "delay": 2, "outer": OUTER},
                [STROM],
            ),
            (
                "differences, sharded, unsent",
                {"mode": "weights", "every": 3, "pattern": "sharded", "unsent": 1},
                ["wgt(0.01, exempt=exempt(names=['*.bias']))"],
            ),
            ("weights", WEIGHTS, ["none", "entropy(4)"]),
            ("weights, master", BY_MASTER, ["none", "entropy(form='rms', floor=6)"]),
        )
        for line in lines
    },
    "allgather: clipped": clipped(mode="allgather"),
    "hierarchical: clipped": clipped(**HIERARCHICAL, sites=SITES),
    "sharded: fp16, clipped": BASE
    | training(clip={"norm": 0.5}, precision="fp16")
    | {"sync": {"mode": "sharded"}, "compressor": "wgt(0.01)"},
    "differences: fp16, clipped": BASE
    | training(clip={"norm": 0.5, "of": "worker"}, precision="fp16")
    | {"sync": DIFFERENCES, "compressor": "wgt(0.01)"},
    "sharded: momentum": BASE
    | NO_MOMENTUM
    | {"sync": {"mode": "sharded"}, "compressor": "strom(density(0.2), momentum=0.9)"},
    # An epoch's last batch has 2 examples for 3 workers.
    "differences: wgt, 31": BASE | training(batch_size=31) | {"sync": DIFFERENCES, "compressor": "wgt(0.01)"},
}

UNEVEN: Spec = {"mode": "async", "step_times": [1, 1.5, 4], "delay": [0, 2], "most_behind": 5}
FOLLOWED = UNEVEN | {"follow_schedule": True}
ASYNC: dict[str, Spec] = {
    f"async: {line}": BASE | NO_MOMENTUM | {"sync": FOLLOWED, "compressor": line}
    for line in (
        STROM,
        "none",
        "wgt(0.01, momentum=0.9)",
        "topk(0.2, exempt=exempt(names=['*.bias'])) | linear(4)",
    )
}

H = 3
"""Steps of a round with a quorum."""
QUORUM: Spec = {"mode": "weights", "every": H, "quorum": 0.51}
_LATE = {"late": 0.25, "away": 0.12, "lost": 0.12, "rounds": [1, 2]}
_FOUR = BASE | {"workers": {"count": 4}}
ON_SCHEDULE: dict[str, Spec] = {
    "quorum: strom": _FOUR | {"sync": QUORUM | {"schedule": _LATE | {"seed": 4}}, "compressor": STROM},
    "quorum: none, outer": _FOUR | {"sync": QUORUM | {"schedule": _LATE | {"seed": 7}, "outer": OUTER}},
    "quorum: unsent": _FOUR
    | {
        "sync": QUORUM | {"schedule": _LATE | {"seed": 2}, "unsent": 0.5},
        "compressor": "topk(0.2, momentum=0.9) | linear(4)",
    },
}
FREE: dict[str, Spec] = {
    "free: async": BASE | NO_MOMENTUM | {"sync": {"mode": "async", "most_behind": 4}, "compressor": STROM},
    "free: quorum": _FOUR | {"sync": QUORUM | {"deadline": {"most": 5}}, "compressor": STROM},
}
"""Workers as fast as they are: no two runs are alike."""

RATE = 0.002
LENET = {"kind": "lenet"}
_IMAGES = BASE | {
    "data": BASE["data"] | {"height": 16, "width": 16},
    "model": LENET,
    **training(optimizer={"kind": "sgd", "lr": RATE, "momentum": 0.9, "weight_decay": 1e-3}),
}


def hybrid(line: str = "none", fields: Spec | None = None, model: Spec = LENET, **sync: Any) -> Spec:
    """A hybrid run, with other fields of its training."""
    return _IMAGES | {
        "sync": {"mode": "hybrid", **sync},
        "compressor": line,
        "training": _IMAGES["training"] | (fields or {}),
        "model": model,
    }


HYBRID: dict[str, Spec] = {
    **{f"{scheme}: none": hybrid(scheme=scheme) for scheme in "abc"},
    "b: topk, other way back": hybrid("topk(0.2) | quantile(4, block=32)", back="linear(8)"),
    "c: strom, 16 bits": hybrid(STROM, scheme="c", activations="bf16"),
    "a: sums": hybrid(
        "wgt(0.01, reduction='sum')", {"optimizer": {"kind": "sgd", "lr": RATE / 3}}, scheme="a"
    ),
    "b: momentum": hybrid(
        "topk(0.1, momentum=0.9)", {"optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0}}, scheme="b"
    ),
    "b, per worker": hybrid(fields={"scaling": {"kind": "linear"}}, fc_batch="per_worker"),
    "c: dropout": hybrid(
        "wgt(0.01)",
        {"batch_size": 50},
        {"kind": "alexnet", "form": "small", "width_multiplier": 0.05},
        scheme="c",
    ),
    "b: batch norm": hybrid(model={"kind": "resnet", "depth": 20}),
    "a: adamw": hybrid(fields={"optimizer": {"kind": "adamw", "lr": 2e-3}}, scheme="a"),
    "b: bf16": hybrid("wgt(0.01)", {"precision": "bf16"}),
    "c: loss of sums": hybrid(
        fields={"loss_reduction": "sum", "optimizer": {"kind": "sgd", "lr": 2e-4}}, scheme="c"
    ),
    "c: 31": hybrid("wgt(0.01)", {"batch_size": 31}, scheme="c"),
}
ALIKE: dict[str, Spec] = {**HOOKED, **SITED, **IN_ROUNDS, **ASYNC, **ON_SCHEDULE, **HYBRID}
"""Real workers and simulated ones come to the same bits."""


def simulating(spec: Spec, workers: int | None = None) -> Spec:
    """The same with simulated workers, or with another number of them."""
    sync = {"mode": "simulated", "of": spec["sync"]}
    return spec | {"sync": sync, "workers": {"count": workers or spec["workers"]["count"]}}


def train(specs: dict[str, Spec], processes: int, folder: Path) -> list[dict[str, Result]]:
    """Each process's results, by name; see `sync_process.py`."""
    folder.mkdir()
    (folder / "specs.json").write_text(json.dumps(specs))
    script = Path(__file__).with_name("sync_process.py")
    run_workers(script, lambda rank: (rank, processes, folder), processes, timeout_s=TIMEOUT_S)
    return [torch.load(folder / f"result_{rank}.pt", weights_only=True) for rank in range(processes)]


def train_really(specs: dict[str, Spec], folder: Path) -> dict[str, list[Result]]:
    """By name, each worker's results."""
    groups: dict[int, dict[str, Spec]] = defaultdict(dict)
    for name, spec in specs.items():
        groups[spec["workers"]["count"]][name] = spec
    found = {}
    for workers, group in groups.items():
        results = train(group, workers, folder / f"real_{workers}")
        found.update({name: [each[name] for each in results] for name in group})
    return found


def same(one: Result, other: Result) -> bool:
    """Whether weights are alike to the bit."""
    return all(torch.equal(each, other["weights"][key]) for key, each in one["weights"].items())
