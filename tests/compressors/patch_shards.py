"""One worker of FSDP2 that publishes its shards: `python patch_shards.py RANK FOLDER`."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from taugrad.compressors import PatchWriter, make_patch


def main(rank: int, folder: Path) -> None:
    """Publishes three states, of which it saves the patch of its shards, and rank 0 whole tensors."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 7), nn.BatchNorm1d(7), nn.Linear(7, 1)).bfloat16()
    fully_shard(model)  # 7 rows on two ranks, and 1 row, of which rank 1 has none
    before = None
    time.sleep(rank)  # rank 0 does not begin before the other one is ready
    with PatchWriter(folder / "weights", full_every=2) as writer:
        for number in range(3):
            state = model.state_dict()
            writer.write(state)
            whole = {name: getattr(tensor, "full_tensor", tensor.clone)() for name, tensor in state.items()}
            if rank == 0:
                torch.save(whole, folder / f"{number}.pt")
            if before is not None:
                (folder / f"{number}.{rank}.shard").write_bytes(make_patch(before, state))
            before = {name: tensor.clone() for name, tensor in state.items()}
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.01)
                model[1].running_mean += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
