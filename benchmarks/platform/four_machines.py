"""Four machines on one, from an empty folder to a compared result; each command is shown before it is run.

    python -m benchmarks.platform.four_machines [FOLDER] [--link 100mbit,5ms] [--epochs 2]

Machines are network namespaces, each with folders of Ray and shared memory of its own (docs/network.md); that
needs Linux, root, and Debian's iproute2. FOLDER, which must be empty, is what they share: specs, MLflow's
database, checkpoints, the token, the report. docs/clusters.md has what came of it.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
    server = f"http://{head.address}:5000"
    environment = clean_environment() | {
        "HOME": f"{folder}/home",  # with the token
        "RAY_AUTH_MODE": "token",
        "MLFLOW_TRACKING_URI": server,
        "TAUGRAD_STORAGE": f"{folder}/taugrad-runs",
    }

    def start(host: Host, line: str, log: str = "") -> "subprocess.Popen[bytes]":
        """A line of a shell, in the folder of specs; what it prints goes to a file if one is named."""
        print(f"\n{host.address}$ {line}", flush=True)
        command = host.command(["sh", "-c", f"exec {line}"], own_folders=True)
        options: dict[str, Any] = {"cwd": folder / "specs", "env": environment, "stdin": subprocess.DEVNULL}
        if not log:
            return subprocess.Popen(command, **options)
        with (folder / "logs" / log).open("w") as file:  # a pipe would stay open as long as Ray runs
            return subprocess.Popen(command, stdout=file, stderr=file, **options)

    store = f"--backend-store-uri sqlite:///{folder}/mlflow.db --artifacts-destination {folder}/artifacts"
    join = f"--address={head.address}:6379"
    specs = " ".join(f"{name}.yaml" for name in LINES)
    steps = [
        (head, "ray get-auth-token --generate > /dev/null", ""),
        (head, f"{RAY}{head.address} --head --port=6379 --dashboard-host={head.address}", "ray-0.txt"),
        *((host, f"{RAY}{host.address} {join}", f"ray-{host.number}.txt") for host in others),
        (head, f"taugrad submit {specs} --address http://{head.address}:8265", ""),
        (head, f"taugrad report four-machines -o {folder}/report", ""),
    ]
    mlflow = start(head, f"mlflow server --host {head.address} --port 5000 {store}", "mlflow.txt")
    try:
        wait_for(head, f"{server}/health")
        for host, line, log in steps:
            if code := start(host, line, log).wait():
                print((folder / "logs" / log).read_text() if log else "", file=sys.stderr)
                return code
    finally:
        mlflow.kill()
        mlflow.wait()
    print(f"{time.monotonic() - begun:.0f} s; the comparison: {folder / 'report' / 'report.html'}")
    return 0


def wait_for(host: Host, url: str) -> None:
    """Waits until a server answers on a host; raises NetworkError: it does not."""
    asking = f"import urllib.request as r; r.urlopen({url!r}, timeout=2)"
    deadline = time.monotonic() + UP_S
    while host.run([sys.executable, "-c", asking], check=False, capture_output=True).returncode:
        if time.monotonic() > deadline:
            raise NetworkError(f"{url} does not answer")
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
