"""Local steps with AdamW: a small transformer learns to write Python, and seldom says what it has learned.

    torchrun --nproc-per-node=2 examples/local_steps_script.py

Each worker takes steps of its own. After every fourth, what it has learned since the last exchange is sent, a
tenth of the elements at a time. The lines that add the exchange are marked.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

from taugrad.compressors import LocalSteps


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
    """One worker: the usual loop, without DDP."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)

    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    local = LocalSteps(  # new
        model,
        optimizer,
        every=4,
        method=options.compressor,
        unsent="1/n",
        fragments=options.fragments,
        delay_steps=options.delay_steps,
    )

    with open(argparse.__file__, "rb") as source:
        text = torch.tensor(list(source.read()))
    drawing = torch.Generator().manual_seed(rank)
    for step in range(options.steps):
        starts = torch.randint(len(text) - 33, (16, 1), generator=drawing)
        lines = text[starts + torch.arange(33)]
        loss = nn.functional.cross_entropy(model(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        local.step()  # new: exchanges in every fourth call
        if rank == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    local.finish()  # new: what is not sent yet; all have the same weights then, except for unsent residuals
    if rank == 0:
        totals = local.totals
        print(f"sent {totals.wire_bytes / 1e6:.2f} MB by this worker, ", end="")
        print(f"{totals.compression_ratio:.1f}x less than every gradient in 32 bits")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compressor", default="strom(density(0.1, every=1)) | golomb_rice")
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay-steps", type=int, default=0)
    train(parser.parse_args())
