"""An engine of vLLM that does what lines of JSON on stdin say: run by vllm_process.py."""

import functools
import json
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PROMPT = [3 + i * i % 240 for i in range(70)]  # two blocks of the prefix cache


def say(llm: Any) -> Any:
    """Greedy tokens and their log-probabilities."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    how = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, detokenize=False, logprobs=1)
    output = llm.generate([{"prompt_token_ids": PROMPT}], how, use_tqdm=False)[0].outputs[0]
    return [list(output.token_ids), [next(iter(step.values())).logprob for step in output.logprobs]]


def status(worker: Any) -> Any:
    reader = worker.weight_transfer_engine.reader
    copies = sum(tensor.copy is not None for tensor in reader._tensors.values())
    return {"number": reader.number, "digest": f"{reader.digest:016x}", "copies": copies}


def spoil(worker: Any) -> None:
    next(worker.get_model().parameters()).data.view(-1)[5] += 1


def verify(worker: Any) -> str:
    try:
        return f"{worker.weight_transfer_engine.reader.verify():016x}"
    except RuntimeError as problem:
        return str(problem)


def halve(worker: Any) -> None:
    """Has the model's loader leave out half of a tensor, as a faulty one may."""
    model = worker.get_model()
    load = type(model).load_weights

    def faulty(weights: Any) -> Any:
        return load(model, ((n, t[: len(t) // 2] if n == "model.norm.weight" else t) for n, t in weights))

    model.load_weights = faulty


def fail_reload(worker: Any, failing: bool) -> None:
    """Has a reload fail once it has put everything in memory."""
    reloader = worker.weight_transfer_engine.reader._reloader
    load = getattr(reloader._load, "__wrapped__", reloader._load)

    @functools.wraps(load)
    def failing_load(weights: Any) -> None:
        load(weights)
        raise MemoryError("none is left")

    reloader._load = failing_load if failing else load


def timed(worker: Any, number: int) -> float:
    """Seconds in which the engine brings what runs to a number."""
    began = time.perf_counter()
    worker.weight_transfer_engine.reader.update(number)
    return time.perf_counter() - began


def theirs(worker: Any, path: str) -> float:
    """Seconds in which vLLM's own applier of sparse updates loads those of a file."""
    import torch
    from vllm.model_executor.model_loader.checkpoint_weight_patch import (
        CheckpointWeightPatch,
        load_checkpoint_weight_patches,
    )

    patches = [CheckpointWeightPatch(*row) for row in torch.load(path, weights_only=True)]
    began = time.perf_counter()
    load_checkpoint_weight_patches(worker.get_model(), patches)
    return time.perf_counter() - began


def memory(worker: Any) -> list[int]:
    """Bytes of the process that are resident, now and at most."""
    now = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return [now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]


def update(llm: Any, number: Any) -> None:
    llm.start_weight_update()
    try:
        llm.update_weights({"update_info": {"number": number}})
    except Exception:
        with suppress(Exception):  # of several ranks, all but one are in an update
            llm.finish_weight_update()
        raise
    llm.finish_weight_update()


def main(model: str, options: str, answers: str) -> None:
    from vllm import LLM

    transfer = {"weight_transfer_config": {"backend": "taugrad"}}
    size = {"dtype": "bfloat16", "max_model_len": 128, "enforce_eager": True, "block_size": 32}
    llm = LLM(model, skip_tokenizer_init=True, **size, **transfer, **json.loads(options))
    commands = {
        "say": lambda: say(llm),
        "has": lambda: llm.collective_rpc("compute_weight_checksums"),
        "init": lambda **info: llm.init_weight_transfer_engine({"init_info": info}),
        "update": lambda number="newest": update(llm, number),
        "status": lambda: llm.collective_rpc(status),
        "spoil": lambda: llm.collective_rpc(spoil),
        "verify": lambda: llm.collective_rpc(verify),
        "fail_reload": lambda failing: llm.collective_rpc(fail_reload, args=(failing,)),
        "halve": lambda: llm.collective_rpc(halve),
        "timed": lambda number: llm.collective_rpc(timed, args=(number,))[0],
        "theirs": lambda path: llm.collective_rpc(theirs, args=(path,))[0],
        "fetched": lambda: llm.collective_rpc("served_weights")[0][2],
        "memory": lambda: llm.collective_rpc(memory)[0],
    }
    print("ready", file=sys.stderr)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"answer": commands[name](**arguments)}
        except Exception as problem:
            answer = {"problem": f"{type(problem).__name__}: {problem}"}
        os.write(int(answers), (json.dumps(answer) + "\n").encode())  # vLLM prints


if __name__ == "__main__":
    main(*sys.argv[1:])
