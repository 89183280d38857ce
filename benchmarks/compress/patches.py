"""Weight patches of a GPT: bits a parameter beside entropy and gaps through zstd, and GB/s.

python -m benchmarks.compress.patches [--quick] [--write]
"""

from collections.abc import Callable
from time import perf_counter, process_time

import numpy as np
import torch
import zstandard
from torch import Tensor
from torch.nn.functional import cross_entropy

from taugrad.compressors import apply_patch, make_patch
from taugrad.platform.models.gpt import GptNetwork
from taugrad.platform.spec.models import Gpt

from ..harness.report import Options, Report, Spread, Table, run_benchmark, say, verdict
from .gradients import entropy_bits

RATES = (1e-6, 3e-6, 1e-5, 1e-4)
SPANS = (1, 10)
VOCABULARY = 2000
INTRODUCTION = """A GPT of {parameters:,} parameters (width {width}, {layers} layers) learns a random text
whose next token follows from the one before half of the time: float32 masters, AdamW with betas 0.9 and 0.95,
{warm} steps at 1e-3, then at each rate 10 steps before those that are measured. What is published is the
masters in bf16. Bits are those of a parameter. **Entropy** is that of positions, as independent events of
the density of each tensor, and of the differences of bits in order, by their frequencies in it. **zstd** is
what it makes at a level of gaps of 8 bits (with escapes) and the new values. Tables and checksums count."""


def learner(quick: bool) -> tuple[GptNetwork, Callable[[float, int], None], int]:
    """A model, what takes steps at a rate, and steps of the warm-up."""
    torch.manual_seed(0)
    config = Gpt(width=64 if quick else 384, layers=2 if quick else 6, heads=4)
    model = GptNetwork(config, 64, VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    follows = torch.randperm(VOCABULARY)

    def take(rate: float, steps: int) -> None:
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(steps):
            text = torch.randint(VOCABULARY, (8, 33))
            for at in range(1, 33):
                text[:, at] = torch.where(torch.rand(8) < 0.5, follows[text[:, at - 1]], text[:, at])
            loss = cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, take, 5 if quick else 60


def published(model: GptNetwork) -> dict[str, Tensor]:
    return {name: parameter.detach().bfloat16() for name, parameter in model.named_parameters()}


def entropy_of_patch(before: Tensor, after: Tensor) -> float:
    """The entropy of positions and differences of one tensor, by NumPy."""
    old, new = (tensor.view(torch.int16).numpy().astype(np.int64) & 0xFFFF for tensor in (before, after))
    ordered = [np.where(array >> 15, 0xFFFF - array, array + 0x8000) for array in (old, new)]
    differences = (ordered[1] - ordered[0]).ravel()
    counts = np.unique(differences[differences != 0], return_counts=True)[1]
    positions = np.array([differences.size - counts.sum(), counts.sum()])
    return entropy_bits(positions) + entropy_bits(counts)


def gaps_and_values(before: dict[str, Tensor], after: dict[str, Tensor]) -> bytes:
    """What others send, before zstd: for each tensor gaps of 8 bits with escapes, then new values."""
    gaps, values = list[bytes](), list[bytes]()
    for name, old in before.items():
        one, other = (tensor.view(torch.int16).numpy().ravel() for tensor in (old, after[name]))
        changed = np.flatnonzero(one != other)
        gap = np.diff(changed, prepend=-1) - 1
        ends = np.cumsum(gap // 255 + 1) - 1
        coded = np.full(int((gap // 255 + 1).sum()), 255, np.uint8)
        coded[ends] = gap % 255
        gaps.append(coded.tobytes())
        values.append(other[changed].tobytes())
    return b"".join(gaps + values)


def measure(options: Options) -> tuple[Table, str]:
    """A row for each rate and span, and the introduction."""
    model, take, warm = learner(options.quick)
    say(f"warm-up: {warm} steps")
    take(1e-3, warm)
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters, rows = sum(tensor.numel() for tensor in model.parameters()), list[tuple[str, ...]]()
    for rate in RATES:
        model.load_state_dict(saved)
        take(rate, 10)
        for span in SPANS:
            say(f"rate {rate:g}, {span} steps")
            before = published(model)
            take(rate, span)
            after = published(model)
            patch = make_patch(before, after)
            due = sum(entropy_of_patch(before[name], after[name]) for name in before) / parameters
            plain = gaps_and_values(before, after)
            zstd = [8 * len(zstandard.compress(plain, level)) / parameters for level in (1, 9)]
            ours = 8 * len(patch) / parameters
            share, least = f"{100 * patch.changed / parameters:.2f}", min(zstd)
            over, ratio = f"{ours / due:.3f} ({verdict(ours / due, 1.08)})", f"{ours / least:.3f}"
            ratio += f" ({verdict(ours / least, 0.6)})" if rate <= 1e-5 else ""
            cells = f"{ours:.4f}", f"{due:.4f}", over, *(f"{bits:.4f}" for bits in zstd), ratio
            rows.append((f"{rate:g}", str(span), share, *cells))
    columns = ("lr", "steps", "changed %", "patch", "entropy", "patch / entropy", "zstd 1", "zstd 9")
    introduction = INTRODUCTION.format(
        parameters=parameters, width=model.tokens.embedding_dim, layers=len(model.blocks), warm=warm
    )
    table = Table("Bits a parameter", (*columns, "patch / the better zstd"), rows)
    return table, introduction


def speed(options: Options) -> Table:
    """GB of weights a second, of weights larger than caches, at shares like those measured."""
    generator, rows = torch.Generator().manual_seed(1), list[tuple[str, ...]]()
    tensors = 4 if options.quick else 24
    before = {
        f"{i}": torch.randn(2048, 4096, generator=generator).mul_(0.02).bfloat16() for i in range(tensors)
    }
    size = sum(tensor.nbytes for tensor in before.values()) / 1e9
    for share in (0.005, 0.035):
        after = {}
        for name, old in before.items():
            chosen = torch.rand(old.shape, generator=generator) < share
            up = torch.rand(old.shape, generator=generator) < 0.5
            steps = torch.where(up, 1, -1) * torch.where(
                torch.rand(old.shape, generator=generator) < 0.9, 1, 2
            )
            after[name] = (old.view(torch.int16) + chosen * steps.short()).view(torch.bfloat16)
        for threads in (1, 2):
            say(f"speed: {100 * share:g}%, {threads} threads")
            making, applying = list[float](), list[float]()
            clock = process_time if threads == 1 else perf_counter
            for _ in range(2 if options.quick else 7):
                began = clock()
                patch = make_patch(before, after, threads=threads)
                making.append(size / (clock() - began))
                weights = {name: tensor.clone() for name, tensor in before.items()}
                began = clock()
                apply_patch(weights, patch, threads=threads)
                applying.append(size / (clock() - began))
            rows.append((f"{100 * share:g}", str(threads), str(Spread.of(making)), str(Spread.of(applying))))
    columns = ("changed %", "threads", "making (goal: 1 a thread)", "applying (goal: 2 a thread)")
    notes = (
        f"Medians; {size:.1f} GB of bf16 in {tensors} tensors; both digests, coding and checks included. One "
        "thread: by CPU time, which other processes hardly change; two: by the time that passed."
    )
    return Table("GB of weights a second", columns, rows, (notes,))


def main(options: Options) -> Report:
    bits, introduction = measure(options)
    return introduction, [bits, speed(options)]


if __name__ == "__main__":
    run_benchmark(main)
