"""Exchange patterns other than all-gather in the hook, against simulated workers; see ddp.py."""

from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from ddp import (
    SIZES,
    Run,
    assert_nothing_lost,
    assert_same,
    everyone,
    make_model,
    new_group,
    refusal,
    scenario,
)
from ddp_methods import keep_promises, refuse_or_skip, with_parts_left_out

from taugrad.compressors import CompressionState

LINES = [
    "wgt(0.02)",
    "qsgd(decay=1)",
    "random_k(0.2)",
    "strom(density(0.1)) | golomb_rice",
    "linear(4, block=50)",
    "topk(0.2, momentum=0.5)",
]
FIXED = [
    "linear(4, block=50)",
    "linear(8, exempt={'names': ['*.bias']})",
    "quantile(8, block=64, decay=0.5)",
    "fp8(decay=1)",
    "fp16(decay=1, reduction='sum')",
    "bf16",
    "sign",
    "terngrad(decay=1)",
    "quantile(2, block=64)",
]
"""Methods whose messages have a fixed size."""
PATTERNS = ["sharded", "parameter_server", "ring"]
CASES = [case for case in product(PATTERNS, LINES) if case != ("ring", LINES[-1])]  # refused
CASES += [(pattern, "none") for pattern in PATTERNS]
CASES += [("collective", line) for line in FIXED]


@scenario(3, values=CASES)
@scenario(2, values=[CASES[0], CASES[-5]])
@scenario(4, values=CASES[-6:-5])
def a_pattern_keeps_what_a_method_promises(case: tuple[str, str]) -> None:
    pattern, line = case
    keep_promises(line, pattern=pattern)


@scenario(3, values=[*PATTERNS, "collective"])
def a_step_that_is_not_finite_is_refused_or_skipped_by_all_of_a_pattern(pattern: str) -> None:
    refuse_or_skip("linear(4, block=50)" if pattern == "collective" else LINES[0], pattern=pattern)
    if pattern in ("sharded", "parameter_server"):
        refuse_or_skip(LINES[0], pattern=pattern, downlink="linear(4)")


@scenario(2)
def a_ring_keeps_what_a_skipped_step_had_of_parameters_in_float64() -> None:
    run = Run("wgt(0.02, nonfinite='skip')", model=make_model().double(), pattern="ring")
    run.poison = {1: ("middle.bias", float("inf"))}
    run.steps(3)
    assert run.skipped == [1]
    assert_nothing_lost(run)


@scenario(3, values=FIXED)
def collectives_hold_back_what_messages_do(line: str) -> None:
    """A parameter that nobody used keeps its residual, and one that some used gets what they sent."""
    runs = {}
    for pattern in ("sharded", "collective"):
        run = with_parts_left_out(line, pattern=pattern)
        state = run.state.state_dict()
        sent = state.pop("totals")["sent"]
        del state["traffic"]
        runs[pattern] = {"digests": run.digests, "sent": sent, **state}
    assert_same(runs["collective"], runs["sharded"])


@scenario(3, values=PATTERNS)
def residuals_are_resharded_to_another_number_of_workers(pattern: Any) -> None:
    """Two of three workers go on: as much of the mean is still to be sent, and thresholds stay."""
    run = Run("strom(density(0.1))", pattern=pattern).steps(3)
    states, kept = everyone(run.state.state_dict()), everyone(run.unsent)
    ranks = [1, 2]
    group = new_group(ranks)
    if dist.get_rank() not in ranks:
        return
    fewer = Run("strom(density(0.1))", pattern=pattern, process_group=group)
    fewer.state.load_state_dict(states, reshard=True)
    assert everyone(fewer.state.is_first_worker, group) == [True, False]  # it logs, without global rank 0
    now = everyone(fewer.unsent, group)
    for name in SIZES:
        before = sum(state[name] for state in kept) / 3
        torch.testing.assert_close(sum(tensor[name] for tensor in now) / 2, before, rtol=0, atol=1e-5)
    assert any(fewer.state.feedback.shard_memories.values()) == (pattern != "parameter_server")
    fewer.step()
    assert len(set(everyone(fewer.digests[-1], group))) == 1


@scenario(2)
def a_pattern_that_does_not_go_with_a_method_is_refused() -> None:
    run = Run(None)
    for line, pattern, words in (
        ("none", "collective", "pattern = collective with none: torch's own all-reduce exchanges it"),
        ("powersgd", "ring", "pattern = ring with powersgd: torch's own all-reduce exchanges it"),
        ("visible", "allgather", "method.kind = visible: it needs weights that all workers agreed on"),
        ("linear(8, symbols='huffman')", "collective", "pattern = collective with method = linear"),
        (LINES[-1], "ring", "method.momentum = 0.5 with pattern = ring: a hop also compresses what"),
    ):
        made: Any = lambda line=line, pattern=pattern: CompressionState(run.ddp, line, pattern=pattern)  # noqa: E731
        assert refusal(made).startswith(f"ValueError: {words}")
    for pattern, line, words in (
        ("ring", "fp16", "downlink = fp16 with ring: only parameter_server and sharded"),
        ("sharded", LINES[-1], "downlink.momentum = 0.5: the sum already contains momentum"),
    ):
        made = lambda line=line, pattern=pattern: CompressionState(  # noqa: E731
            run.ddp, LINES[0], pattern=pattern, downlink=line
        )
        assert refusal(made).startswith(f"ValueError: {words}")
