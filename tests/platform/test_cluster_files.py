"""The files in examples/clusters, read by what would read them; no cluster is started.

That is Ray's loader and its schema, the options of `ray start` and of `mlflow server`, and our own specs.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow.cli import server as mlflow_server
from mlflow.server.security_utils import get_default_allowed_hosts, is_allowed_host_header
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start as ray_start

from taugrad.platform.places import address_of
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.reading import read_spec

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "examples" / "clusters"
LAUNCHED = ("on_premise.yaml", "aws.yaml")
JOBS = ("rayjob_cpu.yaml", "rayjob_gpu.yaml")
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)


def launched(name: str) -> dict[str, Any]:
    """A cluster for `ray up`."""
    config: dict[str, Any] = yaml.safe_load((CLUSTERS / name).read_text())
    return config


def objects(*names: str) -> list[dict[str, Any]]:
    """What files give to Kubernetes."""
    folder = CLUSTERS / "kubernetes"
    return [document for name in names for document in yaml.safe_load_all((folder / name).read_text())]


def the(kind: str, *names: str) -> dict[str, Any]:
    """The only object of a kind."""
    (object_,) = (object_ for object_ in objects(*names) if object_["kind"] == kind)
    return object_


def pods(name: str) -> dict[str, dict[str, Any]]:
    """The pods of a RayJob's head and workers."""
    cluster = the("RayJob", name)["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    return {"head": cluster["headGroupSpec"]["template"]["spec"], "worker": workers["template"]["spec"]}


def variables(pod: dict[str, Any]) -> dict[str, str]:
    """A pod's only container's environment."""
    (container,) = pod["containers"]
    return {row["name"]: row["value"] for row in container.get("env", [])}


def specs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunSpec]:
    """What a RayJob trains: its entrypoint's specs, in the head's environment."""
    for variable, value in variables(pods(name)["head"]).items():
        monkeypatch.setenv(variable, value)
    program, command, *paths = shlex.split(the("RayJob", name)["spec"]["entrypoint"])
    assert (program, command) == ("taugrad", "train")
    for path in map(Path, paths):
        (folder / path.name).write_text(the("ConfigMap", name)["data"][path.name])
    return [read_spec(folder / Path(path).name, []) for path in paths]


def words_after(program: tuple[str, str], commands: list[str]) -> Iterator[list[str]]:
    """The arguments of every call of a program, such as `ray start`, in commands of a shell."""
    for command in commands:
        lexer = shlex.shlex(command, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words = list(lexer)
        for place in range(len(words) - 1):
            if (Path(words[place]).name, words[place + 1]) == program:
                rest = words[place + 2 :]
                end = next((i for i, word in enumerate(rest) if set(word) <= set("();<>|&")), len(rest))
                yield rest[:end]


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_shell_and_ray_take_what_ray_up_is_given(name):
    config = launched(name)
    validate_config(prepare_config(launched(name)))
    for command in [line for group, lines in config.items() if group.endswith("_commands") for line in lines]:
        read = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert (read.returncode, read.stderr) == (0, ""), command
    for group, place in (("head_start_ray_commands", "--head"), ("worker_start_ray_commands", "--address")):
        (words,) = words_after(("ray", "start"), config[group])
        options = ray_start.make_context("ray start", list(words)).params
        assert any(word.startswith(place) for word in words)
        if options["head"]:
            assert options["dashboard_host"] == "127.0.0.1"
            assert options["autoscaling_config"]
        else:
            assert options["address"] == "$RAY_HEAD_IP:6379"
        (command,) = (line for line in config[group] if "ray start" in line)
        assert re.search(r"export [^;]*RAY_AUTH_MODE=token\b[^;]*;.*ray start", command)
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_heads_mlflow_is_the_one_that_jobs_use(name):
    commands = launched(name)["head_start_ray_commands"]
    # A shell's $(...) is one word to it, and many to us.
    commands = [re.sub(r"\$\(hostname[^)]*\)", "10.0.0.1", command) for command in commands]
    (words,) = words_after(("mlflow", "server"), commands)
    options = mlflow_server.make_context("mlflow server", list(words)).params
    (uri,) = {
        match for command in commands for match in re.findall(r"MLFLOW_TRACKING_URI=(\S+?)[; ]", command)
    }
    assert uri == f"http://{options['host']}:{options['port']}"
    assert is_allowed_host_header(get_default_allowed_hosts(), uri.removeprefix("http://"))
    (storage,) = {
        match for command in commands for match in re.findall(r"TAUGRAD_STORAGE=(\S+?)[; ]", command)
    }
    kept = address_of(RunSpec.model_validate({"storage": storage}).storage)
    assert kept == storage  # the same place on every machine: a bucket, or an absolute path


@pytest.mark.parametrize("name", JOBS)
def test_a_jobs_pods_have_the_storage_the_token_and_the_version(name):
    cluster = the("RayJob", name)["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == PINNED["ray"]
    assert cluster["authOptions"] == {"mode": "token"}
    shared = the("PersistentVolumeClaim", "storage.yaml")
    assert shared["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(name).values():
        assert pod["enableServiceLinks"] is False  # no MLFLOW_PORT of Kubernetes' making
        assert variables(pod) == variables(pods(name)["head"])
        (container,) = pod["containers"]
        mounts = {row["name"]: row["mountPath"] for row in container["volumeMounts"]}
        volumes = {row["name"]: row for row in pod["volumes"]}
        assert mounts.keys() == volumes.keys()
        (claim,) = (volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume)
        assert claim["persistentVolumeClaim"]["claimName"] == shared["metadata"]["name"]
        assert Path(variables(pod)["TAUGRAD_STORAGE"]).is_relative_to(mounts[claim["name"]])


@pytest.mark.parametrize("name", JOBS)
def test_a_jobs_pods_have_room_for_its_workers(name, tmp_path, monkeypatch):
    (group,) = the("RayJob", name)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = pods(name)["worker"]["containers"]
    room = container["resources"]["limits"]
    for spec in specs(name, tmp_path, monkeypatch):
        assert address_of(spec.storage) == "/shared/taugrad-runs"
        assert spec.workers.count == group["replicas"]
        assert spec.workers.cpus <= float(room["cpu"])
        assert (spec.workers.device == "cuda") == ("nvidia.com/gpu" in room) == (name == "rayjob_gpu.yaml")


def test_mlflows_pod_is_the_one_that_the_jobs_use():
    service = the("Service", "mlflow.yaml")
    deployment, claim = the("Deployment", "mlflow.yaml")["spec"], the("PersistentVolumeClaim", "mlflow.yaml")
    pod = deployment["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    labels = deployment["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["selector"]["matchLabels"] == labels
    (container,), (port,) = pod["containers"], service["spec"]["ports"]
    (listening,) = container["ports"]
    assert container["command"] == ["mlflow", "server"]
    options = mlflow_server.make_context("mlflow server", list(container["args"])).params
    assert port["targetPort"] == listening["name"] == container["readinessProbe"]["httpGet"]["port"]
    assert port["port"] == listening["containerPort"] == options["port"]
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert options["backend_store_uri"].startswith(f"sqlite:///{mount['mountPath']}/")
    assert Path(options["artifacts_destination"]).is_relative_to(mount["mountPath"])
    host = f"{service['metadata']['name']}:{port['port']}"
    allowed = options["allowed_hosts"].split(",")
    assert is_allowed_host_header(allowed, host)
    assert is_allowed_host_header(allowed, "127.0.0.1:54321")
    assert not is_allowed_host_header(allowed, "elsewhere.example:5000")
    for name in JOBS:
        assert variables(pods(name)["head"])["MLFLOW_TRACKING_URI"] == f"http://{host}"
