"""One of four workers at two sites: `python mailbox_process.py RANK FOLDER`.

They send messages until the last one ends, in the middle of an exchange and without a word; then the others'
own errors end them.
"""

import os
import sys

import torch
import torch.distributed as dist

from taugrad.compressors.wire.mailbox import Expected, Mailbox
from taugrad.compressors.wire.sites import Sites

BUCKETS, STEPS = (0, 1, 2), 3


def main(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=4)
    assert dist.group.WORLD is not None
    group = dist.group.WORLD
    mailbox = Mailbox(group, Sites.of([[0, 1], [2, 3]], 4))
    message = torch.full((1000,), rank, dtype=torch.uint8)
    for step in range(STEPS):
        exchanges = []
        for bucket in BUCKETS:
            if rank == 3 and step == STEPS - 1 and bucket == 1:
                os._exit(0)
            mailbox.expect(bucket, 2000)
            exchanges.append(Expected(message, group, mailbox, bucket))
        for exchange in exchanges:
            exchange.complete()
            assert exchange.rows()[:, 0].tolist() == [0, 1, 2, 3]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
