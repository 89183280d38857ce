"""A trainer that publishes its weights, and readers that follow it: two programs in one file.

python publish_script.py train weights & python publish_script.py read weights
"""

import argparse
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from taugrad.compressors import PatchReader, PatchWriter


def network() -> nn.Module:
    """The model of both programs."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def train(place: str, steps: int, pause: float) -> None:
    """Takes steps, and publishes the weights after each."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    inputs, labels = torch.randn(512, 64), torch.randint(10, (512,))
    with PatchWriter(place, full_every=10, keep=2) as writer:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            # What servers use: bf16 of the float32 masters.
            weights = {name: tensor.detach().bfloat16() for name, tensor in model.state_dict().items()}
            made = writer.write(weights)
            size = made.patch_bytes + made.snapshot_bytes
            print(f"{made.number} {size} bytes, {made.changed:.2%} changed", flush=True)
            time.sleep(pause)


def read(place: str, last: int) -> None:
    """Follows, and prints the number and an output of the model."""
    model = network().bfloat16()
    weights = model.state_dict()  # which are the model's own memory
    reader, before = PatchReader(place), None
    while before is None or before < last:
        number = reader.update(weights)
        if number != before:
            print(f"{number} {model(torch.ones(1, 64).bfloat16()).float().sum().item():.6f}", flush=True)
        before = number
        time.sleep(0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["train", "read"])
    parser.add_argument("place")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--last", type=int, default=99)
    given = parser.parse_args()
    if given.what == "train":
        train(given.place, given.steps, given.pause)
    else:
        read(given.place, given.last)
