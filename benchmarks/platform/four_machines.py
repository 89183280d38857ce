"""Four machines on one, from an empty folder to a compared result; each command is shown before it is run.

    python -m benchmarks.platform.four_machines [FOLDER] [--link 100mbit,5ms] [--epochs 2]

Machines are network namespaces, each with folders of Ray and shared memory of its own (docs/network.md); that
needs Linux, root, and Debian's iproute2. FOLDER, which must be empty, is what they share: specs, MLflow's
database, checkpoints, the token, the report. docs/clusters.md has what came of it.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..network import Host, Link, Network, NetworkError, uniform
from .faults.commands import clean_environment

SPEC = """experiment: four-machines
name: {name}
model: {{kind: lenet}}
data: {{kind: mnist5k}}
training: {{epochs: {epochs}}}
compressor: "{line}"
workers: {{count: 4}}
"""
LINES = {"none": "none", "fp16": "fp16", "strom": "strom(tau=0.05) | golomb_rice"}
RAY = "ray start --disable-usage-stats --num-cpus=1 --object-store-memory=134217728 --node-ip-address="
UP_S = 180.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--link", default="100mbit,5ms", help="rate, delay one way, loss")
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="four-machines-"))).absolute()
    folder.mkdir(exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    try:
        with Network(uniform(4, Link.parse(given.link))) as network:
            print(f"first to last machine: {network.probe(0, 3)}", flush=True)
            return walk(network.hosts, folder, given.epochs)
    except (NetworkError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def walk(hosts: list[Host], folder: Path, epochs: int) -> int:
    """What a user does; the exit code of the first command that fails, or 0."""
    head, *others = hosts
    begun = time.monotonic()
    for part in ("home", "specs", "logs"):
        (folder / part).mkdir()
    for name, line in LINES.items():
        (folder / "specs" / f"{name}.yaml").write_text(SPEC.format(name=name, line=line, epochs=epochs))
    server, jobs = f"http://{head.address}:5000", f"http://{head.address}:8265"
    machine = Machine(folder, server)
    made = machine.run(head, "ray get-auth-token --generate > /dev/null")
    mlflow = machine.start(
        head,
        f"mlflow server --host {head.address} --port 5000 --backend-store-uri sqlite:///{folder}/mlflow.db "
        f"--artifacts-destination {folder}/mlflow-artifacts",
    )
    try:
        machine.wait_for(head, f"{server}/health")
        started = made or machine.run(
            head, f"{RAY}{head.address} --head --port=6379 --dashboard-host={head.address}"
        )
        for host in others:
            started = started or machine.run(host, f"{RAY}{host.address} --address={head.address}:6379")
        specs = " ".join(f"{name}.yaml" for name in LINES)
        trained = started or machine.run(head, f"taugrad submit {specs} --address {jobs}")
        reported = trained or machine.run(head, f"taugrad report four-machines -o {folder}/report")
    finally:
        mlflow.kill()
        mlflow.wait()
    if not reported:
        print(f"{time.monotonic() - begun:.0f} s; the comparison: {folder / 'report' / 'report.html'}")
    return reported


class Machine:
    """Runs commands on hosts, in the folder that all share; the home folder, with the token, is in it."""

    def __init__(self, folder: Path, server: str) -> None:
        self._folder = folder
        self._environment = clean_environment() | {
            "HOME": f"{folder}/home",
            "RAY_AUTH_MODE": "token",
            "MLFLOW_TRACKING_URI": server,
            "TAUGRAD_STORAGE": f"{folder}/taugrad-runs",
        }

    def run(self, host: Host, line: str) -> int:
        """Runs a line of a shell to its end; its exit code."""
        print(f"\n{host.address}$ {line}", flush=True)
        # What stays running must not keep a pipe of ours open.
        log = self._folder / "logs" / f"{host.number}-ray.txt"
        quiet = f"({line}) > {log} 2>&1" if line.startswith("ray start") else line
        command = host.command(["sh", "-c", quiet], own_folders=True)
        done = subprocess.run(
            command, cwd=self._folder / "specs", env=self._environment, stdin=subprocess.DEVNULL, check=False
        )
        if done.returncode and quiet != line:
            print(log.read_text(), file=sys.stderr)
        return done.returncode

    def start(self, host: Host, line: str) -> "subprocess.Popen[bytes]":
        """Starts a program that stays."""
        print(f"\n{host.address}$ {line} &", flush=True)
        with (self._folder / "logs" / "mlflow.txt").open("w") as log:
            return subprocess.Popen(
                host.command(shlex.split(line)),
                cwd=self._folder / "specs",
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def wait_for(self, host: Host, url: str) -> None:
        """Waits until a server answers on a host; raises NetworkError: it does not."""
        asking = f"import urllib.request as r; r.urlopen({url!r}, timeout=2)"
        deadline = time.monotonic() + UP_S
        while host.run([sys.executable, "-c", asking], check=False, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise NetworkError(f"{url} does not answer; {self._folder / 'logs'} says why")
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
