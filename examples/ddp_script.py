"""Thresholded gradients in a plain DDP script, on this machine and without anything else running.

    python examples/ddp_script.py --workers 2

Each worker is a process. The workers train a small network on images of ten patterns, with noise, which the
script makes. They exchange compressed gradients over gloo, on the loopback interface: by default, only the
elements that have reached a threshold. The compressor applies the momentum, before the threshold; the
optimizer has none. The line that adds compression is marked.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import compress_gradients


def patterns(examples: int) -> tuple[Tensor, Tensor]:
    """Images float32 [examples, 64], each one of ten patterns, and which one, int64 [examples].

    Half of the images are negated, so that no straight line tells the patterns apart. All have noise.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (examples,), generator=generator)
    signs = 2.0 * torch.randint(2, (examples, 1), generator=generator) - 1
    noise = torch.randn(examples, 64, generator=generator)
    return signs * torch.randn(10, 64, generator=generator)[labels] + 1.5 * noise, labels


def train(rank: int, options: argparse.Namespace, rendezvous: str) -> None:
    """One worker: the usual DDP loop."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    workers: int = options.workers
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=workers)

    images, labels = patterns(1800)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train_all = order[:360], order[360:]
    mine = train_all[: len(train_all) // workers * workers][rank::workers]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    ddp = DistributedDataParallel(model)
    state = compress_gradients(ddp, options.compressor)  # the only new line
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)  # the compressor has the momentum

    shuffling = torch.Generator().manual_seed(rank)
    for _ in range(options.epochs):
        for batch in mine[torch.randperm(len(mine), generator=shuffling)].split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
            optimizer.step()

    if rank == 0:
        with torch.no_grad():
            accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        totals = state.totals
        print(f"accuracy     {accuracy:.3f}")
        print(f"sent         {totals.wire_bytes / 1e6:.2f} MB by this worker in {totals.steps} steps")
        print(f"compression  {totals.compression_ratio:.1f}x against sending every gradient in 32 bits")
    dist.barrier()  # no worker leaves while gloo's threads still work for another
    dist.destroy_process_group()


def main() -> None:
    """Starts the workers and waits for them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--compressor",
        default="wgt(tau=0.1, momentum=0.9)",
        help="a method and its links, such as 'topk(0.01) | linear(4)' (default: %(default)s)",
    )
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: give 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        mp.spawn(train, (options, rendezvous), nprocs=options.workers)


if __name__ == "__main__":
    main()
