"""What a host of network/churn.py does: trains a GPT 4 x 128 as a member, one step in so many seconds.

    python -m benchmarks.network.churn_member COORDINATOR KEY_FILE CHECKPOINT LOG PACE_S EVERY

A line in LOG for each exchange: the time, the examples in it, and the mean loss of their steps.
"""

import argparse
import os
import sys
from pathlib import Path
from time import sleep, time

import torch
from torch import nn

from taugrad.compressors import LocalSteps, Members
from taugrad.platform.models.gpt import GptNetwork
from taugrad.platform.spec.models import Gpt

BATCH, CONTEXT = 4, 32
COMPRESSOR = "strom(density(0.05, every=1)) | golomb_rice"


def main(coordinator: str, key_file: str, checkpoint: str, log: str, pace_s: float, every: int) -> None:
    """Trains until it is killed."""
    torch.set_num_threads(1)
    model = GptNetwork(Gpt(), CONTEXT, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    members = Members(coordinator, key=Path(key_file).read_bytes())
    local = LocalSteps(model, optimizer, every=every, compressor=COMPRESSOR, unsent="1/n", members=members)
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        optimizer.load_state_dict(saved["optimizer"])
        local.load_state_dict(saved["local"])
    local.join()
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    drawing = torch.Generator()
    drawing.seed()
    losses: list[float] = []
    with open(log, "a", buffering=1) as lines:
        lines.write(f"{time()} 0 0\n")
        due = time()
        while True:
            starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=drawing)
            words = text[starts + torch.arange(CONTEXT + 1)]
            loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            sleep(max(0.0, due + pace_s - time()))
            due = max(due + pace_s, time() - pace_s)
            if local.step():
                lines.write(f"{time()} {BATCH * len(losses)} {sum(losses) / len(losses)}\n")
                losses = []
                torch.save(
                    {"local": local.state_dict(), "optimizer": optimizer.state_dict()}, f"{checkpoint}.new"
                )
                os.replace(f"{checkpoint}.new", checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:5], float(sys.argv[5]), int(sys.argv[6]))
