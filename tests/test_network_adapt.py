"""A run over a link that becomes slower and fast again follows it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from needs import missing

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from network import Link, Network, NetworkError, uniform, why_not  # noqa: E402

HOSTS = 2
FAST, SLOW = (uniform(HOSTS, Link.parse(text)) for text in ("200mbit", "5mbit"))
SLOWER_FROM, FASTER_FROM, STEPS = 45, 97, 149
FOLLOWS = 50
"""Steps, at most."""
TIMEOUT_S = 120
SPEC: dict[str, Any] = {
    "data": {"kind": "synthetic", "train_examples": 4000, "test_examples": 20, "height": 28, "width": 28},
    "model": {"kind": "mlp", "widths": [1024], "activation": "tanh"},
    "training": {
        "iterations": STEPS,
        "batch_size": 512,
        "optimizer": {"kind": "sgd", "lr": 1e-2, "momentum": 0},
    },
    "compressor": "strom(density(0.01)) | golomb_rice",
    "sync": {"mode": "allgather", "adapt": {"density": [0.001, 0.1]}},
    "workers": {"count": HOSTS},
    "checkpoint": {"interval": 1000},
}


def test_density_follows_a_link_that_becomes_slower_and_fast_again() -> None:
    if reason := why_not(FAST):
        missing(reason)
    script = str(Path(__file__).with_name("network_adapt_host.py"))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "net0", "OMP_NUM_THREADS": "1"}
    density: dict[int, float] = {}
    try:
        with Network(FAST) as network:
            workers = [
                host.popen(
                    [sys.executable, script, str(host.number), str(HOSTS), "10.88.0.1", json.dumps(SPEC)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for host in network.hosts
            ]
            lines = iter(workers[0].stdout.readline, "")
            for line in lines:
                words = line.split()
                if len(words) == 1:
                    break
                density[int(words[0])] = float(words[1])
                if int(words[0]) == SLOWER_FROM:
                    network.change(SLOW)
                if int(words[0]) == FASTER_FROM:
                    network.change(FAST)
            other, _ = workers[1].communicate(timeout=TIMEOUT_S)
            assert workers[0].wait(TIMEOUT_S) == workers[1].wait(TIMEOUT_S) == 0
    except NetworkError as error:
        missing(str(error))
    before = density[SLOWER_FROM]
    slow = min(density[SLOWER_FROM + number] for number in range(FOLLOWS + 1))
    after = max(density[FASTER_FROM + number] for number in range(FOLLOWS + 1))
    assert slow < before / 2, density
    assert after > 2 * slow, density
    assert line == other, "replicas differ"
    assert {0.001 <= each <= 0.1 for each in density.values()} == {True}
    with pytest.raises(StopIteration):
        next(lines)
