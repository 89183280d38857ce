"""verl: a checkpoint engine whose channel from the trainer to the rollouts is a stream of weight patches.

actor_rollout_ref:
  rollout:
    checkpoint_engine:
      backend: taugrad
      custom_backend_module: taugrad.compressors.integrations.verl
      engine_kwargs: {taugrad: {place: "s3://bucket/run"}}
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_name
from verl.workers.rollout.utils import ensure_async_iterator

from ..patches import PatchReader, PatchWriter
from ..patches.store import Store


@CheckpointEngineRegistry.register("taugrad")
class TaugradCheckpointEngine(CheckpointEngine):
    """Publishes the actor's weights on its rank 0; each rollout worker reads them, and keeps a copy."""

    def __init__(
        self, bucket_size: int, place: str, is_master: bool = False, timeout_s: float = 600.0, **options: Any
    ) -> None:
        """Names the stream.

        Args:
            bucket_size: not used.
            place: see `PatchWriter`; all workers reach it.
            is_master: whether this is the actor's rank 0, as verl says.
            timeout_s: how long a rollout worker waits for a number.
            options: more arguments of `PatchWriter`.
        """
        self._place, self._is_master, self._timeout_s, self._options = place, is_master, timeout_s, options
        self._writer: PatchWriter | None = None
        self._reader, self._weights, self._number = PatchReader(place), dict[str, Tensor](), -1

    def prepare(self) -> dict[str, int]:
        """Tells the number that the actor publishes next; its rank 0 takes the place."""
        if not self._is_master:
            return {}
        self._writer = self._writer or PatchWriter(self._place, **self._options)
        return {"number": self._writer.number + 1}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, int]]
    ) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Passes the number on to all workers: there is no process group."""
        number = metadata[0]["number"]
        return {"number": [number] * actor_wg_world_size}, {"number": [number] * rollout_world_size}

    def init_process_group(self, number: int) -> None:
        """Notes the number that is sent next."""
        self._number = number

    def finalize(self) -> None:
        """Does nothing: readers and writers stay."""

    async def send_weights(
        self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Publishes the weights, which all of the actor's ranks gather; returns metrics."""
        whole = dict[str, Tensor]()
        async for name, tensor in ensure_async_iterator(weights):
            if self._writer is not None:
                whole[name] = tensor.detach().to("cpu", copy=True)
        if self._writer is None:
            return {}
        made = self._writer.write(whole)
        return {"taugrad/bytes": made.patch_bytes or made.snapshot_bytes, "taugrad/changed": made.changed}

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Tensor]]:
        """Yields all tensors of the number that is sent.

        Raises:
            TimeoutError: it cannot be reached in time.
        """
        end = time.monotonic() + self._timeout_s
        while (number := await asyncio.to_thread(self._update)) < self._number:
            if time.monotonic() > end:
                raise TimeoutError(f"{self._place}: number {self._number} is not reached, {number} is")
            await asyncio.sleep(0.1)
        device = get_device_name() if torch.accelerator.is_available() else "cpu"
        for name, tensor in self._weights.items():
            yield name, tensor.to(device)

    def _update(self) -> int:
        """Reads on; the number, or -1 for none."""
        store = Store(self._place)
        if not self._weights:
            files = store.files().items()
            with suppress(FileNotFoundError):  # the writer keeps newer ones only
                for name in [name for name, file in files if name.endswith(".safetensors") and file.size][
                    -1:
                ]:
                    self._weights = load(store.read(name))
        number = self._reader.update(self._weights) if self._weights else None
        return -1 if number is None else number
