"""One worker of runs whose times are looked at: `python times_process.py RANK WORKERS FOLDER`.

Worker 1 comes late to every step, by LATE_S; so the others have to wait for it. FOLDER/specs.json has the
runs; what each worker found is in FOLDER/times_RANK.json.
"""

import json
import sys
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch
import torch.distributed as dist
from trainer_process import Recorder

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.trainer import Trainer

LATE_S = 0.06


def run(spec: RunSpec) -> dict[str, Any]:
    recorder = Recorder()
    trainer = Trainer(spec, load(spec.data), torch.device("cpu"), recorder)
    iterate, steps, seconds = trainer.sync.iterate, [], []

    def late(*arguments: Any) -> float:
        began = perf_counter()
        if dist.get_rank() == 1:
            sleep(LATE_S)
        loss = iterate(*arguments)
        seconds.append(perf_counter() - began)
        steps.append(trainer.sync.last_step)
        return loss

    trainer.sync.iterate = late  # type: ignore[method-assign]
    trainer.fit()
    timeline = trainer.timeline()
    return {
        "steps": [
            {
                "wait": step.blocked_s,
                "compute": took - step.compress_s - step.blocked_s - step.decode_s,
                "wire_bytes": step.wire_bytes,
            }
            for step, took in zip(steps, seconds, strict=True)
        ],
        "logged": [metrics for _, metrics in recorder.logged if "train/loss" in metrics],
        "timeline": None if timeline is None else timeline.to_json(),
    }


def main(rank: int, workers: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    specs = json.loads((folder / "specs.json").read_text())
    found = {name: run(RunSpec.model_validate(spec)) for name, spec in specs.items()}
    (folder / f"times_{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
