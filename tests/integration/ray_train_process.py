"""The script on docs/how-to/ray-train.md on a Ray of its own: both workers fail in the second epoch, once."""

import os
from collections.abc import Callable
from pathlib import Path

import ray.train
from adapter_process import SPARSE, plainly, recorded, script

CUT = 30
"""The loss with which the first attempt ends; the checkpoint is of the 24th step."""


def failing_once(train: Callable[[], None], folder: Path, cut: int = CUT) -> Callable[[], None]:
    """Writes the losses of each worker into the folder, and those of the plain loop."""

    def run() -> None:
        rank = ray.train.get_context().get_world_rank()
        ours, plain = folder / f"{rank}.txt", folder / f"plain{rank}.txt"
        left = cut
        if not plain.exists():
            with plain.open("w") as file, recorded(lambda loss: print(loss, file=file)):
                plainly(SPARSE, rank, "in turns")
        else:
            left = 1000

        def note(loss: float) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise RuntimeError("as a machine that is lost")
            print(loss, file=file)

        with ours.open("a") as file, recorded(note):
            train()

    return run


if __name__ == "__main__":
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    names = script("ray-train.md")
    names |= {"METHOD": SPARSE, "EPOCHS": 2}
    names["train"] = failing_once(names["train"], Path.cwd())
    result = names["main"]()
    Path("result.txt").write_text(repr((sorted(os.listdir(result.checkpoint.path)), result.metrics)))
