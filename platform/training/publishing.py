"""The agreed weights as a stream of patches, written in the background."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from torch import nn

from taugrad.compressors import PatchWriter
from taugrad.compressors.patches import Published

from ..tracking import names

log = logging.getLogger("taugrad")


class Publisher:
    """Writes one state after the other; while it writes, others are left out."""

    def __init__(self, place: str, full_every: int, keep: int | None) -> None:
        """Takes a place: a folder, or an address that fsspec knows.

        There are `full_every` patches from one snapshot to the next; `keep` snapshots stay, by default all.
        Raises FileExistsError: another process writes there.
        """
        self._writer = PatchWriter(place, full_every=full_every, keep=keep, threads=1)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="taugrad-publish")
        self._running: tuple[int, Future[Published]] | None = None
        self._begun = -1

    def publish(self, iteration: int, model: nn.Module) -> None:
        """Begins to write a model's weights and buffers as they are now; they may change afterwards."""
        if self._running is None and iteration != self._begun:
            self._begun = iteration
            state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            self._running = iteration, self._pool.submit(self._writer.write, state)

    def collect(self, *, wait: bool = False) -> Iterator[tuple[int, dict[str, float]]]:
        """Iteration and metrics of what has been written; a failure is a warning, for training goes on."""
        if self._running is None or not (wait or self._running[1].done()):
            return
        (iteration, running), self._running = self._running, None
        try:
            made = running.result()
        except Exception as problem:  # object stores have classes of their own
            self._begun = -1
            log.warning("the weights of iteration %s were not published: %s", iteration, problem)
            return
        yield (
            iteration,
            {
                names.PUBLISH_BYTES: float(made.patch_bytes),
                names.PUBLISH_SNAPSHOT_BYTES: float(made.snapshot_bytes),
                names.PUBLISH_CHANGED: made.changed,
                names.PUBLISH_NUMBER: float(made.number),
            },
        )

    def close(self) -> None:
        """Ends, when what is being written is done; another writer may then take the place."""
        self._pool.shutdown()
        self._writer.close()
