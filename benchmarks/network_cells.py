"""Trainings over links of a rate and a delay, each measured once and kept (benchmarks/network)."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from network import Link, Network, uniform

from taugrad.platform.spec import RunSpec

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 3600


@dataclass(frozen=True)
class Asked:
    """A training over a link."""

    spec: RunSpec
    half: str = ""
    """What its all-reduces are in, where it has any: `fp16` or `bf16`; empty: float32."""

    @property
    def key(self) -> str:
        """Of what is computed."""
        return self.spec.fingerprint() + self.half


class Cells:
    """What was measured over links, in a file with a line for each measurement."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {(each["link"], each["key"]): each for each in map(json.loads, lines)}

    def measure(self, link: str, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        """Trains what is not known over this link, and keeps it; what is known of all."""
        wanted = {each.key: each for each in asked}
        todo = [each for key, each in wanted.items() if (link, key) not in self._known]
        if todo:
            print(f"{link}, {len(todo)} trainings ...", flush=True)
            self._path.parent.mkdir(exist_ok=True)
        for each in todo:
            entry = {"link": link, "key": each.key, "line": each.half or str(each.spec.compressor)}
            entry |= over_link(link, each)
            self._known[link, each.key] = entry
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return [self._known[link, each.key] for each in asked]


def over_link(link: str, asked: Asked) -> dict[str, Any]:
    """A training by a host for each worker on one network, and what its probe found."""
    hosts = asked.spec.workers.count
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "net0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
        file = Path(folder) / "spec.json"
        file.write_text(asked.spec.model_dump_json(), encoding="utf-8")
        with Network(uniform(hosts, Link.parse(link))) as network:
            probe = str(network.probe())
            script = str(ROOT / "benchmarks" / "network_train.py")
            workers = [
                host.popen(
                    [
                        *(sys.executable, script, str(host.number), str(hosts)),
                        *(network.hosts[0].address, str(file), asked.half),
                    ],
                    env=environment,
                    stdout=subprocess.PIPE if host.number == 0 else subprocess.DEVNULL,
                    text=True,
                )
                for host in network.hosts
            ]
            told, _ = workers[0].communicate(timeout=TIMEOUT_S)
            if any(worker.wait() for worker in workers):
                raise RuntimeError(f"{link}, {asked.spec.compressor}: a worker failed")
    return {"probe": probe, **json.loads(told)}
