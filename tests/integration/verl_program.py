"""A trainer of two ranks and three rollouts, by verl's own registry, in the order of its manager's calls."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.utils.import_utils import import_external_libs

Weights = dict[str, torch.Tensor]


async def update(actors: list[Any], rollouts: list[Any], weights: Weights) -> list[Weights]:
    """What `CheckpointEngineManager.update_weights` does, with its own words for each step."""
    metadata = [engine.prepare() for engine in actors + rollouts]
    for engines, arguments in zip(
        (actors, rollouts), type(actors[0]).build_topology(len(actors), len(rollouts), metadata), strict=True
    ):
        for rank, engine in enumerate(engines):
            engine.init_process_group(**{name: column[rank] for name, column in arguments.items()})

    async def receive(engine: Any) -> Weights:
        return {name: tensor.clone() async for name, tensor in engine.receive_weights(global_steps=1)}

    received = [asyncio.create_task(receive(engine)) for engine in rollouts]
    await asyncio.sleep(0.3)  # they wait
    sent = [await engine.send_weights(iter(weights.items()), global_steps=1) for engine in actors]
    assert sent[1:] == [{}] * (len(actors) - 1), sent
    print({name: value for name, value in sent[0].items() if name.startswith("taugrad/")})
    results = await asyncio.gather(*received)
    for engine in actors + rollouts:
        engine.finalize()
    return results


async def main(place: str) -> None:
    import_external_libs("taugrad.compressors.integrations.verl")

    def new(**options: Any) -> Any:
        return CheckpointEngineRegistry.new("taugrad", bucket_size=2**20, place=place, **options)

    generator = torch.Generator().manual_seed(0)
    weights = {f"layer.{i}": torch.randn(64, 64, generator=generator).bfloat16() for i in range(3)}
    actors = [new(is_master=rank == 0, full_every=3) for rank in range(2)]
    rollouts = [new(timeout_s=20.0) for _ in range(2)]
    for step in range(6):
        if step == 4:
            rollouts.append(new())  # a replica that joins
        for tensor in weights.values():
            tensor.view(torch.int16)[step, ::7] += 1
        for got in await update(actors, rollouts, weights):
            assert got.keys() == weights.keys()
            assert all(got[name].equal(tensor) for name, tensor in weights.items())
    late = new(timeout_s=0.2)
    late.init_process_group(number=99)
    try:
        await anext(late.receive_weights())
    except TimeoutError as problem:
        print(problem)
    files = sorted(path.name for path in Path(place).glob("0*"))
    print(len(files), "files")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
