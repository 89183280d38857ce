"""A script on docs/how-to/ray-train.md on the tests' Ray: workers fail in the second epoch, once.

python ray_train_process.py train.py
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import ray.train
from ddp_adapters import SPARSE, local_steps_plainly, plainly, recorded, script

CUT = 30
"""The loss with which the first attempt ends; the checkpoint is of the 24th step."""


def failing_once(
    train: Callable[[], None], plain_loop: Callable[[int], None], folder: Path
) -> Callable[[], None]:
    """Writes the losses of each worker into the folder, and those of the plain loop."""

    def run() -> None:
        rank = ray.train.get_context().get_world_rank()
        ours, plain = folder / f"{rank}.txt", folder / f"plain{rank}.txt"
        left = 1000 if plain.exists() else CUT
        if not plain.exists():
            with plain.open("w") as file, recorded(lambda loss: print(loss, file=file)):
                plain_loop(rank)

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
    file = sys.argv[1]
    names, folder = script("ray-train.md", file), Path(file[:-3]).absolute()
    folder.mkdir()
    names["EPOCHS"] = 2
    plain_loop = local_steps_plainly
    if file == "train.py":
        names["METHOD"] = SPARSE
        plain_loop = functools.partial(plainly, SPARSE)
    # Two workers find room on one CPU, too.
    names["ScalingConfig"] = functools.partial(names["ScalingConfig"], resources_per_worker={"CPU": 0.5})
    names["train"] = failing_once(names["train"], lambda rank: plain_loop(rank, "in turns"), folder)
    result = names["main"]()
    files = sorted(os.listdir(result.checkpoint.path))
    (folder / "result.txt").write_text(repr((files, result.metrics)))
