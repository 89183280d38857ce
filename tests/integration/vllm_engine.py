"""An engine of vLLM that does what lines of JSON on stdin say: a program of test_vllm.py."""

import json
import os
import sys
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
    return {"number": reader.number, "copies": sum(t.copy is not None for t in reader._tensors.values())}


def spoil(worker: Any) -> None:
    next(worker.get_model().parameters()).data.view(-1)[5] += 1


def verify(worker: Any) -> None:
    worker.weight_transfer_engine.reader.verify()


def update(llm: Any, number: Any) -> None:
    llm.start_weight_update()
    llm.update_weights({"update_info": {"number": number}})
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
