"""Weights in a running vLLM: bytes a version, seconds until it is served, seconds paused, and memory.

    python -m benchmarks.compress.engines [--quick] [--write]

vLLM's CPU build has an environment of its own: see benchmarks/harness/vllm_process.py.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import zstandard
from torch import Tensor

from taugrad.compressors import PatchWriter, make_patch

from ..harness.report import Options, Report, Spread, Table, number, run_benchmark, say
from ..harness.vllm_process import ROOT, Engine, vllm_python
from ..network.network import Network, why_not
from ..network.topology import Link, uniform
from .patches import gaps_and_values

RATES = (1e-6, 1e-5)
LINKS = ("1gbit,50ms", "100mbit,20ms")
SHARES = (0.001, 0.01, 0.04)
INTRODUCTION = """\
A Llama of {parameters:,} random parameters (bf16 of float32 masters) learns random tokens by AdamW;
{versions} versions are published at each rate, one a step, behind {warm} steps at 1e-4. vLLM 0.32 for
CPUs runs in a process of its own and follows the folder. **vLLM sparse** is an int32 index and a bf16
value for each element that changes; **zstd** is the better of levels 1 and 9 of gaps of 8 bits and
values. **Paused** is how long the engine does nothing but change its weights; patches were fetched,
decoded and computed before, on a thread, as while it serves. **vLLM's own** is
`load_checkpoint_weight_patches` with the same changes. Not measured here: GPUs."""


def llama(quick: bool) -> Any:
    import transformers

    torch.manual_seed(0)
    width, layers, words = (64, 2, 250) if quick else (768, 12, 16000)
    config = transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        max_position_embeddings=256,
    )
    config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
    return transformers.LlamaForCausalLM(config)


def published(model: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().bfloat16() for name, tensor in model.state_dict().items()}


class Stream:
    """A model that learns, and the engine that follows it."""

    def __init__(self, quick: bool, work: Path) -> None:
        self.model, self.place, self.work = llama(quick), work / "weights", work
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = 32 if quick else 64
        for _ in range(3):
            self.learn(1e-4)
        self.writer = PatchWriter(self.place, full_every=10**6)
        self.model.config.save_pretrained(self.place)
        self.last = published(self.model)
        self.writer.write(self.last)

    def learn(self, rate: float) -> None:
        self.optimizer.param_groups[0]["lr"] = rate
        tokens = torch.randint(3, self.model.config.vocab_size, (2, self.tokens))
        self.optimizer.zero_grad()
        self.model(tokens, labels=tokens).loss.backward()
        self.optimizer.step()

    def publish(self, weights: dict[str, Tensor]) -> tuple[int, int, dict[str, Tensor]]:
        """Number, bytes, and the weights before."""
        before, self.last = self.last, weights
        made = self.writer.write(weights)
        return made.number, made.patch_bytes, before

    def paused(self, engine: Engine, number: int, before: dict[str, Tensor]) -> tuple[float, float]:
        """Seconds paused for a number, and by vLLM's own applier."""
        _, ours = served(engine, number)
        rows = [
            (name, tuple(before[name].shape), torch.bfloat16, values, indices)
            for name, indices, values in make_patch(before, self.last).sparse()
        ]
        torch.save(rows, self.work / "sparse.pt")
        return ours, engine.ask("theirs", path=str(self.work / "sparse.pt"))


def served(engine: Engine, number: int) -> tuple[float, float]:
    """Seconds until a number that has been written is served, and of these, seconds paused."""
    began = time.perf_counter()
    while engine.ask("fetched") != number:
        assert time.perf_counter() - began < 300, "the engine does not fetch what is there"
        time.sleep(0.01)
    paused = engine.ask("timed", number=number)
    return time.perf_counter() - began, paused


def versions(
    stream: Stream, engine: Engine, rate: float, count: int
) -> Iterator[tuple[tuple[float, ...], dict[str, Tensor], dict[str, Tensor]]]:
    """Bytes of each version; seconds of `write`, until served, of these paused; the weights around it."""
    for _ in range(count):
        stream.learn(rate)
        weights, began = published(stream.model), time.perf_counter()
        number_, size, before = stream.publish(weights)
        write_s = time.perf_counter() - began
        yield (size, write_s, *served(engine, number_)), before, weights


def medians(rows: Sequence[Sequence[float]]) -> list[str]:
    return [number(Spread.of(column).middle) for column in zip(*rows, strict=True)]


def by_rate(stream: Stream, engine: Engine, count: int) -> Table:
    rows, parameters = list[tuple[str, ...]](), sum(tensor.numel() for tensor in stream.last.values())
    for rate in RATES:
        say(f"rate {rate:g}")
        measured = []
        for (size, *seconds), before, weights in versions(stream, engine, rate, count):
            changed = sum(int((before[name] != new).sum()) for name, new in weights.items())
            plain = gaps_and_values(before, weights)
            zstd = min(len(zstandard.compress(plain, level)) for level in (1, 9))
            measured.append((100 * changed / parameters, size, 6 * changed, zstd, *seconds))
        rows.append((f"{rate:g}", *medians(measured)))
    names = ("lr", "changed %", "patch", "vLLM sparse", "zstd", "s to write", "s to served", "s paused")
    notes = (
        "Medians of a version: bytes, and seconds: of `write`, from its end until served, of these paused."
    )
    return Table("A version, in a folder", names, rows, (notes,))


def by_link(python: str, stream: Stream, count: int) -> Table:
    """The same, where a link lies between the folder and the engine, which has its own copy to start from."""
    rows = list[tuple[str, ...]]()
    for text in LINKS:
        say(text)
        stream.writer.close()
        stream.writer = PatchWriter(stream.place, full_every=10**6, keep=1)
        stream.publish(stream.last)  # a snapshot to start from
        link = Link.parse(text)
        with Network(uniform(2, link)) as network:
            reader, store = network.hosts
            program = [sys.executable, str(ROOT / "benchmarks/harness/folder_server.py")]
            folder = store.popen([*program, str(stream.place), store.address, "9870"])
            within = reader.command([])
            with closing(Engine(python, stream.work, stream.place, within=within)) as engine:
                engine.ask("init", place=f"webhdfs://{store.address}:9870/", poll_s=0.05)
                for rate in RATES:
                    measured = [values for values, *_ in versions(stream, engine, rate, count)]
                    least = Spread.of([size for size, *_ in measured]).middle * 8 / link.rate
                    rows.append((text, f"{rate:g}", *medians(measured), number(least)))
            folder.terminate()
    names = ("link", "lr", "patch", "s to write", "s to served", "s paused", "s of bytes alone")
    notes = (
        "The engine lists files every 0.05 s and reads them by fsspec's WebHDFS client: three requests. "
        "A patch is there before `write`, which then notes what it wrote, returns: "
        "so part of its way lies within.",
    )
    return Table(f"A version, over a link ({count} at each rate)", names, rows, notes)


def by_share(stream: Stream, engine: Engine, repeats: int) -> Table:
    rows, generator = list[tuple[str, ...]](), torch.Generator().manual_seed(1)
    for share in SHARES:
        say(f"{share:.1%} of the elements")
        seconds = list[tuple[float, float]]()
        for _ in range(repeats):
            weights = {}
            for name, old in stream.last.items():
                chosen = torch.rand(old.shape, generator=generator) < share
                weights[name] = (old.view(torch.int16) + chosen.short()).view(torch.bfloat16)
            number_, _, before = stream.publish(weights)
            seconds.append(stream.paused(engine, number_, before))
        ours, theirs = (Spread.of(column) for column in zip(*seconds, strict=True))
        ratio = f"{ours.middle / theirs.middle:.3f}"
        rows.append((f"{share:.1%}", str(ours), str(theirs), ratio))
    began = time.perf_counter()
    (digest,) = engine.ask("verify")
    assert len(digest) == 16, digest
    notes = (
        f"The digest of all that runs, compared with the stream's, took {time.perf_counter() - began:.2f} s."
    )
    return Table("Seconds paused", ("changed", "here (goal: a tenth)", "vLLM's own", "ratio"), rows, (notes,))


def main(options: Options) -> Report:
    python, count = vllm_python(), 2 if options.quick else 20
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        stream = Stream(options.quick, work / "large")
        with closing(Engine(python, work / "large", stream.place)) as engine:
            say("the engine starts")
            engine.ask("say")
            before = engine.ask("memory")[0]
            engine.ask("init", place=str(stream.place), poll_s=0.05)
            at_init = engine.ask("memory")[0]
            tables = [by_rate(stream, engine, count), by_share(stream, engine, 3 if options.quick else 5)]
            now, most = engine.ask("memory")
            size = sum(tensor.nbytes for tensor in stream.last.values())
            row = tuple(f"{value / 1e6:.0f}" for value in (size, before, at_init, now, most))
            columns = ("weights", "before init", "behind init", "at the end", "at most")
            tables.append(Table("Resident memory of the engine, MB", columns, [row]))
        if reason := why_not():
            say(f"no links: {reason}")
        else:
            tables.append(by_link(python, stream, 2 if options.quick else 10))
    parameters = sum(tensor.numel() for tensor in stream.last.values())
    return INTRODUCTION.format(parameters=parameters, versions=count, warm=3), tables


if __name__ == "__main__":
    run_benchmark(main)
