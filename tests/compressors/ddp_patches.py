"""Streams of weight patches that two workers write; see ddp.py."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
from ddp import assert_same, everyone, refusal, scenario
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from taugrad.compressors import PatchMismatch, PatchReader, PatchWriter, apply_patch, make_patch


@contextmanager
def shared_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(everyone(folder)[0])
        dist.barrier()


@scenario(2)
def ranks_that_all_publish_plain_weights_write_them_once() -> None:
    with shared_folder() as place, PatchWriter(place) as writer:
        made = [writer.write({"a": torch.full((4,), float(k))}) for k in range(3)]
        assert [row.number for row in made] == [0, 1, 2]
        assert everyone(made) == [made, made]
        own = {"a": torch.full((4,), float(dist.get_rank()))}
        taken, refused = sorted(everyone(refusal(partial(writer.write, own))), reverse=True)
        assert taken == "taken"
        assert "has other weights than rank" in refused
        assert sorted(path.name for path in place.glob("000*")) == [
            "0000000000.safetensors", "0000000001.patch", "0000000002.patch", "0000000003.patch",
        ]  # fmt: skip


@scenario(2)
def shards_of_which_one_cannot_be_written_are_followed_by_a_snapshot() -> None:
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (2,))
    with shared_folder() as place, PatchWriter(place, full_every=50) as writer:
        reader, weights, steps, refusals = PatchReader(place), {"a": torch.zeros(8, 3)}, [], []
        for step in range(6):
            whole = torch.full((8, 3), float(step))
            state: dict[Any, Tensor] = {"a": distribute_tensor(whole, mesh, [Shard(0)])}
            if (step, rank) == (4, 1):
                state[7] = whole  # no name
            full = Mock(side_effect=OSError(28, "No space left on device"))
            with patch.object(writer._store, "write", full) if (step, rank) == (2, 1) else nullcontext():
                refusals.append(refusal(partial(writer.write, state)).partition(":")[0])
            dist.barrier()
            steps.append((reader.update(weights), weights["a"][7, 2].item()))
            dist.barrier()
        assert steps == [(0, 0.0), (1, 1.0), (1, 1.0), (3, 3.0), (3, 3.0), (4, 5.0)]
        wrong = {2: "OSError", 4: "TypeError"} if rank else {4: "RuntimeError"}
        assert {k: name for k, name in enumerate(refusals) if name != "taken"} == wrong
        assert list(place.glob("0000000003.*.safetensors"))  # behind the failure


@scenario(2)
def readers_of_whole_tensors_merge_the_shards_of_fsdp() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 7), nn.BatchNorm1d(7), nn.Linear(7, 1)).bfloat16()
    fully_shard(model)  # 7 rows on two ranks, and 1 row, of which rank 1 has none
    with shared_folder() as place, PatchWriter(place) as writer:
        reader, states, weights = PatchReader(place), [], dict[str, Tensor]()
        for number in range(3):
            state = model.state_dict()
            writer.write(state)
            whole = {name: getattr(tensor, "full_tensor", tensor.clone)() for name, tensor in state.items()}
            weights = weights or {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
            assert reader.update(weights) == number
            assert_same(weights, whole)
            shards = {name: tensor.clone() for name, tensor in state.items() if isinstance(tensor, DTensor)}
            states.append((shards, {name: whole[name] for name in shards}))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.01)
                model.get_buffer("1.running_mean").add_(1)
            dist.barrier()
    (before, weights), (after, whole) = states[1:]
    patches = everyone(bytes(make_patch(before, after)))
    with pytest.raises(PatchMismatch, match="another shard of"):
        apply_patch(weights, patches[0])
    apply_patch(weights, b"".join(patches))
    assert_same(weights, whole)
