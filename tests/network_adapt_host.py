"""A host of test_network_adapt.py: `python network_adapt_host.py RANK HOSTS ADDRESS SPEC`.

Trains a spec, which is JSON. Host 0 prints a line for each step, the number of steps and the share of
elements that is aimed at; all print a hash of the weights at the end.
"""

import hashlib
import sys
from typing import Any

import torch
import torch.distributed as dist

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.training.trainer import Trainer


class Silent:
    """A listener that keeps nothing."""

    def undelivered(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def main(rank: int, hosts: int, address: str, text: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29400", rank=rank, world_size=hosts)
    spec = RunSpec.model_validate_json(text)
    trainer = Trainer(spec, load(spec.data), torch.device("cpu"), Silent())
    sync = trainer.sync
    assert isinstance(sync, HookedGradients)
    adapter = sync.adapter
    assert adapter is not None
    iterate = sync.iterate

    def shown(*arguments: Any) -> float:
        loss = iterate(*arguments)
        if rank == 0:
            print(trainer.done + 1, adapter.choice.density, flush=True)
        return loss

    sync.iterate = shown  # type: ignore[method-assign]
    trainer.fit()
    digest = hashlib.sha256()
    for each in trainer.model.state_dict().values():
        digest.update(each.numpy().tobytes())
    print(digest.hexdigest(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
