"""One worker of the scenarios: `python ddp_process.py RANK WORKERS FOLDER NAME...`.

It runs those of these names in a row, and writes after each how many it has done into FOLDER/done-RANK.
"""

import os
import sys
import warnings
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from ddp import KILLED, SCENARIOS, clean_up
from torch.distributed.fsdp import FSDPModule

from taugrad.compressors.bucket import layout

LEFT_OUT = {"ddp_process"}
if not hasattr(FSDPModule, "set_custom_reduce_scatter"):  # before torch 2.9
    LEFT_OUT.add("ddp_reduce_scatter")
for path in sorted(Path(__file__).parent.glob("ddp_*.py")):  # which list scenarios
    if path.stem not in LEFT_OUT:
        import_module(path.stem)


def main(rank: int, workers: int, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    layout._SHORTEST_SLICE = 16  # the scenarios' parameters are small; not where tests of other folders run
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=workers,
        timeout=timedelta(seconds=240),  # another worker may compile a kernel meanwhile
    )
    for done, name in enumerate(names, start=1):
        SCENARIOS[workers][name]()
        (folder / f"done-{rank}").write_text(str(done))
        if name in KILLED:
            os._exit(0)  # there is nobody left to say goodbye to
        clean_up()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
