"""Where a scenario is run: a folder with its store, and the Ray or the machines that it needs."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from mlflow.tracking import MlflowClient

from taugrad.platform.ports import free_port
from taugrad.platform.tracking.store import open_client

from .commands import Command, RayHost, clean_environment, end, family, started
from .mlflow_server import Server
from .scenarios import Scenario

EXPERIMENT, STORAGE = "soak", "taugrad-runs"


class Place:
    """A folder for one case, with the spec in it; each command there starts a Ray of its own.

    Attributes:
        folder: of the command.
        storage: of checkpoints.
        uri: of the tracking store.
        experiment: MLflow's.
    """

    def __init__(self, folder: Path, scenario: Scenario, template: Path) -> None:
        """Makes a folder for a scenario from a copy of an empty database of MLflow's."""
        folder.mkdir(parents=True)
        self.folder, self.scenario = folder, scenario
        self.experiment = EXPERIMENT
        self.storage = folder / STORAGE
        self.uri = f"sqlite:///{folder}/mlflow.db"
        shutil.copy(template, folder / "mlflow.db")
        (folder / "spec.yaml").write_text(scenario.spec(self.experiment))
        self.environment = clean_environment()

    def reaching(self, head: Any) -> dict[str, str]:
        """Environment of commands on a Ray that cases share, with a store and checkpoints of their own."""
        ours = {"MLFLOW_TRACKING_URI": self.uri, "TAUGRAD_STORAGE": str(self.storage)}
        return head.environment | {"RAY_ADDRESS": head.address} | ours

    @property
    def output(self) -> Path:
        """What the commands have said, outside of the folder, whose disk may be full."""
        return self.folder.with_suffix(".txt")

    def start(self, arguments: Sequence[str]) -> Command:
        return Command.start(arguments, self.folder, self.environment, self.output)

    def first(self) -> list[str]:
        return self.scenario.arguments()

    def processes(self, command: Command) -> list[psutil.Process]:
        """All that takes part in a command, itself first."""
        return command.family()

    def client(self) -> MlflowClient:
        return open_client(self.uri)


class SharedRay(Place):
    """Commands on a Ray that cases share: they take half as long there."""

    def __init__(self, folder: Path, scenario: Scenario, template: Path, host: RayHost) -> None:
        super().__init__(folder, scenario, template)
        self._host = host

    def start(self, arguments: Sequence[str]) -> Command:
        return self._host.start(arguments, self.folder)


class WithServer(Place):
    """An MLflow server that cases share: each has an experiment of its own."""

    def __init__(self, folder: Path, scenario: Scenario, template: Path, server: Server) -> None:
        super().__init__(folder, scenario, template)
        self.server = server
        self.uri = server.uri
        self.experiment = f"{EXPERIMENT}-{folder.name}-{os.getpid()}"
        (folder / "spec.yaml").write_text(scenario.spec(self.experiment))
        self.environment |= {"MLFLOW_TRACKING_URI": server.uri}


class JobHead:
    """A Ray head on 127.0.0.1 that takes jobs."""

    def __init__(self, folder: Path) -> None:
        """Starts it, and waits until it answers; raises RuntimeError where it does not."""
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = clean_environment() | {
            "HOME": str(folder),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "disabled",
        }
        ports = [free_port() for _ in range(6)]
        port, dashboard, client, agent, runtime_agent, metrics = ports
        self.jobs, self.address = f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{port}"
        ray = Path(sys.executable).with_name("ray")
        line = [
            *(str(ray), "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2"),
            *("--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}"),
            *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
            *(f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"),
            *(f"--runtime-env-agent-port={runtime_agent}", f"--object-store-memory={256 * 2**20}"),
        ]
        self.process = started(line, f"{self.jobs}/api/version", folder / "head.txt", self.environment)

    def close(self) -> None:
        """Ends it and all of its processes."""
        end(family(self.process.pid))
        self.process.wait(30)


class OnHead(Place):
    """Commands are jobs of a head that cases share."""

    def __init__(self, folder: Path, scenario: Scenario, template: Path, head: JobHead) -> None:
        super().__init__(folder, scenario, template)
        self.head = head
        self.environment = self.reaching(head)

    def first(self) -> list[str]:
        return [*self.scenario.arguments(self.head.jobs), "--storage", str(self.storage)]

    def processes(self, command: Command) -> list[psutil.Process]:
        return [*command.family(), *family(self.head.process.pid)]
