"""FSDP2 inside islands, a compressed exchange between them: a small transformer learns to write Python.

    torchrun --nproc-per-node=4 examples/fsdp2_script.py --islands 2

Each island holds the model once, sharded over its workers. The line that adds compression is marked.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from taugrad.compressors import compress_replicas


class Writer(nn.Module):
    """A transformer that reads bytes and guesses the next one."""

    def __init__(self, width=64, layers=2, context=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text):
        """Scores [batch, context, 256] of what follows each byte of a text [batch, context]."""
        hidden = self.tokens(text) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask)
        return self.head(hidden)


def train(options):
    """One worker: the usual loop."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    rank, workers = dist.get_rank(), dist.get_world_size()
    sizes = (options.islands, workers // options.islands)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=("replicate", "shard"))

    torch.manual_seed(0)  # equal weights everywhere
    model = Writer().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    state = compress_replicas(model, mesh["replicate"], options.compressor)  # the only new line
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with open(argparse.__file__, "rb") as source:
        text = torch.tensor(list(source.read()))
    drawing = torch.Generator().manual_seed(rank)
    for step in range(options.steps):
        starts = torch.randint(len(text) - 33, (16, 1), generator=drawing)
        lines = text[starts + torch.arange(33)].to(device)
        loss = nn.functional.cross_entropy(model(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}  loss {loss.item():.2f}")

    if rank == 0:
        totals = state.totals  # of this worker
        print(f"sent {totals.wire_bytes / 1e6:.2f} MB, {totals.compression_ratio:.1f}x less than in 32 bits")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--islands", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--compressor", default="linear(8)")
    train(parser.parse_args())
