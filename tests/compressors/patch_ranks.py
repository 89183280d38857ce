"""One worker of two that publish: `python patch_ranks.py RANK FOLDER`."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from taugrad.compressors import PatchReader, PatchWriter


def main(rank: int, folder: Path) -> None:
    """All ranks publish the same plain weights, then others; then shards, of which one cannot be written."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    with PatchWriter(folder / "plain") as writer:
        results["plain"] = [writer.write({"a": torch.full((4,), float(k))}) for k in range(3)]
        try:
            writer.write({"a": torch.full((4,), float(rank))})
            results["other"] = "published"
        except ValueError as problem:
            results["other"] = str(problem)
        dist.barrier()
    writer, mesh = PatchWriter(folder / "shards", full_every=50), init_device_mesh("cpu", (2,))
    reader, weights, read = PatchReader(folder / "shards"), {"a": torch.zeros(8, 3)}, []
    for step in range(6):
        whole = torch.full((8, 3), float(step))
        if step == 2 and rank == 1:
            write = writer._store.write

            def fail(*_: object, write: object = write) -> int:
                writer._store.write = write
                raise OSError(28, "No space left on device")

            writer._store.write = fail
        try:
            state = {"a": distribute_tensor(whole, mesh, [Shard(0)])}
            writer.write(state if (step, rank) != (4, 1) else state | {7: whole})
        except (OSError, TypeError, RuntimeError) as problem:
            read.append(type(problem).__name__)
        dist.barrier()
        read.append([reader.update(weights), weights["a"][7, 2].item()])
        dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(results | {"read": read}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
