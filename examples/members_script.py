"""Members that come and go: a small transformer learns to write Python on machines that may be taken away.

    openssl rand -hex 32 > key
    python -m taugrad.compressors.coordinator --listen 127.0.0.1:7070 --key-file key --state run.db
    python examples/members_script.py --key-file key --checkpoint a.pt    # in another terminal
    python examples/members_script.py --key-file key --checkpoint b.pt    # in a third one

Kill any of them, even the coordinator, and start it again with the same command. SIGTERM is a notice: what a
member has not sent yet goes to another one. The lines about members are marked.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from local_steps_script import Writer
from torch import nn

from taugrad.compressors import LocalSteps, MemberRefused, Members


def train(options):
    """One member: the usual loop, without a process group."""
    torch.set_num_threads(1)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    local = LocalSteps(
        model,
        optimizer,
        every=options.every,
        method="strom(density(0.1, every=1)) | golomb_rice",
        unsent="1/n",
        members=Members(options.coordinator, key=options.key_file.read_bytes().strip()),  # new
    )

    def save():
        """Between two steps; a file that is half written is never read."""
        torch.save(
            {"local": local.state_dict(), "optimizer": optimizer.state_dict()}, f"{options.checkpoint}.new"
        )
        os.replace(f"{options.checkpoint}.new", options.checkpoint)

    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        optimizer.load_state_dict(saved["optimizer"])
        local.load_state_dict(saved["local"])
        print(f"goes on from {options.checkpoint}, which has round {local.membership.round}", flush=True)
    local.join()  # new: the agreed weights, from here on

    notices = []
    signal.signal(signal.SIGTERM, lambda *_: notices.append("SIGTERM"))  # new
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    drawing = torch.Generator()
    drawing.seed()  # examples of its own, at each start
    for step in range(1, options.steps + 1):
        starts = torch.randint(len(text) - 33, (16, 1), generator=drawing)
        lines = text[starts + torch.arange(33)]
        loss = nn.functional.cross_entropy(model(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if local.step():  # exchanges in every sixteenth call
            save()
            member = local.membership
            print(
                f"step {step}: loss {loss.item():.3f}, round {member.round}, members {member.members}",
                flush=True,
            )
        if notices:
            print("another member has what was not sent:", local.leave())  # new
            save()
            return
    local.finish()
    save()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--coordinator", default="127.0.0.1:7070")
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=16)
    try:
        train(parser.parse_args())
    except MemberRefused as refusal:  # such as of another key, or where all members are gone
        sys.exit(str(refusal))
