"""A running vLLM follows a stream: its memory and its words are those of a fresh engine, bit for bit."""

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.harness.vllm_process import Engine, vllm_python, with_plugin
from cases import in_turn
from torch import Tensor

from taugrad.compressors import PatchWriter
from taugrad.compressors.integrations.vllm_server import VllmServer, reason
from taugrad.compressors.patches import listing

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def python() -> str:
    """A Python that has vLLM."""
    try:
        return vllm_python()
    except RuntimeError as problem:
        pytest.skip(str(problem))


class Trainer:
    """A model of random weights, as its checkpoint has them, and a stream of it."""

    def __init__(self, kind: str, place: Path, *, tied: bool = False, **shape: Any) -> None:
        import transformers
        from safetensors.torch import load_file

        torch.manual_seed(0)
        size = {"vocab_size": 250, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2}
        size |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
        config = getattr(transformers, f"{kind}Config")(**size | {"tie_word_embeddings": tied} | shape)
        checkpoint = place.with_name("checkpoint")
        getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16().save_pretrained(checkpoint)
        self.weights: dict[str, Tensor] = load_file(checkpoint / "model.safetensors")
        for tensor in self.weights.values():
            tensor.mul_(3 if tensor.ndim > 1 else 1)  # so that words differ
        if tied:
            self.weights["lm_head.weight"] = self.weights["model.embed_tokens.weight"]
        elif "lm_head.weight" in self.weights:  # a token that no prompt has
            self.weights["model.embed_tokens.weight"][249] = float("nan")  # vLLM's sparse updates cannot
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
FP8 = {"quantization": "fp8_per_channel"}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {}, {}),
    "qwen2, tied": ("Qwen2", {"tied": True}, {}),
    "qwen3 moe": ("Qwen3Moe", MOE, {}),
    "llama, two ranks": ("Llama", {}, {"tensor_parallel_size": 2}),
    "qwen3 moe, two ranks": ("Qwen3Moe", MOE | {"moe_intermediate_size": 64}, {"tensor_parallel_size": 2}),
    "bloom, whose loader permutes": ("Bloom", {"n_head": 2, "tie_word_embeddings": True}, {}),
    "llama, quantized": ("Llama", {}, FP8),
    "llama, quantized, two ranks": ("Llama", {}, FP8 | {"tensor_parallel_size": 2}),
}
RELOADED = {"bloom, whose loader permutes": 4, "llama, quantized": 14, "llama, quantized, two ranks": 14}
"""How many tensors: query_key_value's weights and biases, or all linear layers' weights, of two layers."""


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
        assert {status["copies"] for status in engine.ask("status")} == {RELOADED.get(model, 0)}
        assert set(engine.ask("verify")) == {engine.ask("status")[0]["digest"]}
        after = engine.state()
        assert after[0] != first
        with closing(Engine(python, work, trainer.place, **options)) as fresh:  # of the snapshot of number 4
            assert fresh.state() == after
            while trainer.publish() < 8:  # a newer snapshot, before it follows
                pass
            fresh.ask("init", place=str(trainer.place))
            assert {status["number"] for status in fresh.ask("status")} == {4}
            for each in (fresh, engine):
                each.ask("update", number=8)
            assert fresh.state() == engine.state()


def test_what_fails_leaves_the_old_version_served(python: str, tmp_path: Path) -> None:
    trainer = Trainer("Llama", tmp_path / "weights")
    other = Trainer("Llama", tmp_path / "other/weights", intermediate_size=96)
    place = trainer.place
    with closing(Engine(python, tmp_path, place)) as engine:
        with pytest.raises(RuntimeError, match="init_weight_transfer_engine must be called first"):
            engine.ask("update")
        engine.ask("init", place=str(place), poll_s=None)  # so that it meets what is wrong
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
        before = (place / "0000000001.patch").read_bytes()
        for wrong in (good[:900], good[:900] + b"?" + good[901:], b"", before):
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
        assert all("the weights that run have digest" in said for said in engine.ask("verify"))
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
        again.ask("spoil")
        with pytest.raises(RuntimeError, match="other bits"):
            again.ask("init", place=str(place))
    with closing(Engine(python, tmp_path, place)) as faulty:
        faulty.ask("halve")  # its loader maps half of a tensor
        with pytest.raises(RuntimeError):
            faulty.ask("init", place=str(place))


def test_a_reload_that_fails_leaves_the_old_version_served(python: str, tmp_path: Path) -> None:
    trainer = Trainer("Llama", tmp_path / "weights")
    with closing(Engine(python, tmp_path, trainer.place, **FP8)) as engine:
        engine.ask("init", place=str(trainer.place))
        assert trainer.publish() == 1
        engine.ask("update")
        served = engine.state()
        trainer.publish()
        engine.ask("fail_reload", failing=True)
        with pytest.raises(RuntimeError, match=r"none is left; number 1, digest \w+, is served"):
            engine.ask("update", number=2)
        assert engine.state() == served
        engine.ask("fail_reload", failing=False)
        engine.ask("update", number=2)
        assert engine.ask("say") != served[0]
        engine.ask("update", number=1)
        assert engine.state() == served


@contextmanager
def http_server(python: str, work: Path, model: Path) -> Iterator[str]:
    """A server of vLLM's own; yields its address before it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = "--skip-tokenizer-init --dtype bfloat16 --max-model-len 128 --block-size 32 --enforce-eager"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *options.split()]
    command += ["--host", "127.0.0.1", "--port", str(port), "--weight-transfer-config"]
    with (work / "server.log").open("ab") as log:
        environment = with_plugin(work) | {"VLLM_SERVER_DEV_MODE": "1"}
        process = subprocess.Popen(
            [*command, '{"backend": "taugrad"}'], stdout=log, stderr=log, env=environment
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def test_a_server_is_followed_over_http(python: str, tmp_path: Path) -> None:
    trainer = Trainer("Llama", tmp_path / "weights")

    def followed(beside: VllmServer, number: int, patience_s: float = 300) -> None:
        """Follows until it has a number, with the digest that the stream has there."""
        due = f"{number}-{list(listing(trainer.place))[-1].split()[-1]}"
        end, version = time.monotonic() + patience_s, None
        while version is None:
            try:
                version = beside.follow()
            except OSError:  # it starts
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)
        assert version == due

    def sums(url: str) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/weight_checker", b'{"action": "checksum"}', headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    with http_server(python, tmp_path, trainer.place) as url:
        beside = VllmServer(url, str(trainer.place), poll_s=0.1, verify_every=1)
        followed(beside, 0)
        assert trainer.publish() == 1
        followed(beside, 1)
        before = sums(url)
        trainer.publish()
        patch = trainer.place / "0000000002.patch"
        patch.write_bytes(patch.read_bytes()[:900])
        with pytest.raises(OSError, match="500") as refused:
            followed(beside, 2, patience_s=0)
        assert "number 1, digest" in reason(refused.value)
        assert sums(url) == before
        assert [trainer.publish() for _ in range(2)] == [3, 4]
        followed(beside, 4)
        after = sums(url)
        assert after != before
    with http_server(python, tmp_path, trainer.place) as url:
        followed(VllmServer(url, str(trainer.place)), 4)
        assert sums(url) == after
