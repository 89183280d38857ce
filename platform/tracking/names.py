"""The names of metrics, tags and params. Dashboards and users' notebooks rely on them.

Renaming anything here breaks saved charts and other people's code.
"""

import re
from typing import Final, Literal

# Per iteration (MLflow step = iteration).
TRAIN_LOSS: Final = "train/loss"
"""The loss of the whole batch, in the task's unit."""
COMM_FRACTION: Final = "comm/fraction"
"""Elements sent over elements, mean of the workers, 0 to 1."""
COMM_ELEMENTS: Final = "comm/elements"
"""Elements sent, all workers together."""
COMM_PAPER_BYTES: Final = "comm/paper_bytes"
"""Value bits only, as Anoosheh counts them."""
COMM_WIRE_BYTES: Final = "comm/wire_bytes"
"""What was handed to the transport, headers and indices included."""
COMM_RECEIVED_BYTES: Final = "comm/received_bytes"
"""What arrived at a worker, mean of the workers."""
COMM_MESSAGES: Final = "comm/messages"
"""Messages from one worker to another, summed over all links."""
COMM_WIRE_MB_TOTAL: Final = "comm/wire_mb_total"
"""Wire bytes since the run began, in MB (1e6 bytes): the running sum of `comm/wire_bytes`."""
COMM_BITS_PER_PARAM: Final = "comm/bits_per_param"
"""Wire bits over parameters x workers."""
COMM_COMPRESSION_RATIO: Final = "comm/compression_ratio"
"""Baseline bytes (4 per parameter and worker) over wire bytes."""
COMM_TAU: Final = "comm/tau"
"""The threshold, mean over worker 0's elements."""
COMM_RESIDUAL_RMS: Final = "comm/residual_rms"
"""Root mean square of what is not sent yet, over all workers."""
COMM_STALENESS: Final = "comm/staleness"
"""In the mode async: the number of updates that were in the receiver's weights, but not in those at which
the sender computed its gradient; mean of the messages applied in an iteration."""
COMM_STALENESS_MOST: Final = "comm/staleness_most"
"""The same for the oldest of these messages."""
ROUND_MEMBERS: Final = "round/members"
"""With `sync.quorum`: workers in the round that ends with this iteration."""
ROUND_LEFT_OUT: Final = "round/left_out"
"""All other workers: those that were late for this round, or away."""
ROUND_CAUGHT_UP_BYTES: Final = "round/caught_up_bytes"
"""Bytes of agreed weights that workers took over from others; they are also in the wire bytes."""
ROUND_LOST: Final = "round/lost"
"""Workers that were lost in this round."""
ROUND_LOST_RMS: Final = "round/lost_rms"
"""Root mean square of what lost workers had not sent, over the model's elements."""
TIME_DATA: Final = "time/data_s"
"""How long a step waited for its examples."""
TIME_COMPUTE: Final = "time/compute_s"
"""Forward, backward, optimizer, and everything that is in no other part of a step."""
TIME_COMPRESS: Final = "time/compress_s"
"""Choosing what is sent, and writing it as bytes."""
TIME_WAIT: Final = "time/wait_s"
"""How long a step waited for the network, and so for the other workers."""
TIME_DECOMPRESS: Final = "time/decompress_s"
"""Reading messages and adding them up, as far as the step waits for it."""
TIME_STEP: Final = "time/step_s"
"""The whole step: data, compute, compress, wait and decompress add up to it."""
TIME_EXCHANGE: Final = "time/exchange_s"
"""How long any message was under way: the waiting, and what overlapped with computing."""
TIME_OVERLAP: Final = "time/overlap_s"
"""The part of the exchange that overlapped with other work, so that the step did not wait for it."""
NET_MBIT: Final = "net/mbit_s"
"""What a worker handed over, over the time of the exchange, in Mbit/s (1e6 bits); mean of the workers."""
NET_RECEIVED_MBIT: Final = "net/received_mbit_s"
"""The same for what arrived at a worker; compare this one with the rate of a link."""

# After each publication of weights (`publish`), at the iteration that they are of.
PUBLISH_BYTES: Final = "publish/patch_bytes"
"""Bytes of the patch from the weights published before; 0 for the first."""
PUBLISH_SNAPSHOT_BYTES: Final = "publish/snapshot_bytes"
"""Bytes of the snapshot that was written with it; 0 without one."""
PUBLISH_CHANGED: Final = "publish/changed_share"
"""Elements that changed since the weights published before, over all, 0 to 1."""
PUBLISH_NUMBER: Final = "publish/number"
"""The number under which readers find the weights."""

# Per evaluation.
EVAL_ACCURACY: Final = "eval/accuracy"
"""A fraction, 0 to 1."""
EVAL_LOSS: Final = "eval/loss"
"""Mean loss of the test examples, in the task's unit."""
EVAL_EXAMPLES: Final = "eval/examples"
"""Number of test examples in an evaluation, from which its uncertainty follows."""
EPOCH: Final = "epoch"
"""The epoch of the evaluation, from 1."""
EPOCH_BITS_PER_PARAM: Final = "epoch/bits_per_param"
"""Wire bits over parameters x workers, mean of the epoch's iterations (Oland-Raj, figure 5)."""
EPOCH_VALUE_BITS_PER_PARAM: Final = "epoch/value_bits_per_param"
"""The same for paper bytes: before entropy coding, without positions."""

# Totals of a run, over all workers and iterations (1 GB = 1e9 bytes).
TOTAL_WIRE_GB: Final = "total/wire_gb"
"""Wire bytes of all workers."""
TOTAL_WIRE_MB_LOG10: Final = "total/wire_mb_log10"
"""Decimal logarithm of the wire MB: MLflow's scatter charts have no logarithmic axis."""
TOTAL_RECEIVED_GB: Final = "total/received_gb"
"""What arrived at all workers together."""
TOTAL_PAPER_GB: Final = "total/paper_gb"
"""Paper bytes of all workers."""
TOTAL_FRACTION: Final = "total/fraction"
"""Elements sent over elements."""
TOTAL_COMPRESSION_RATIO: Final = "total/compression_ratio"
"""Baseline bytes over wire bytes."""
TOTAL_ACCURACY_PER_GB: Final = "total/accuracy_per_gb"
"""The papers' Ratio: accuracy in percent over paper GB."""
TOTAL_ITERATIONS_TO_TARGET: Final = "total/iterations_to_target"
"""Iterations of a run that stopped at `training.until`. Its other totals are those until then."""
TOTAL_SECONDS: Final = "total/seconds"
"""Training time in seconds, including evaluations, without the start-up."""
TOTAL_SKIPPED_STEPS: Final = "total/skipped_steps"
"""Steps left out because a gradient was not finite."""

# Tags.
TAG_SPEC_HASH: Final = "taugrad.spec_hash"
"""Twelve hex digits, equal for specs that define the same computation (`RunSpec.fingerprint`)."""
TAG_GIT_COMMIT: Final = "taugrad.git_commit"
"""The commit of the working folder, if it is a git repository."""
TAG_PAPER: Final = "taugrad.paper"
"""The spec's `paper`: the paper that the run repeats."""
TAG_CHAIN: Final = "taugrad.chain"
"""The compressor as one line."""
TAG_CHECKPOINTS: Final = "taugrad.checkpoints"
"""Where the run's checkpoints are."""
TAG_PUBLISHED: Final = "taugrad.published"
"""Where the run publishes its weights (`publish.path`); absent if it publishes none."""
TAG_METRIC: Final = "taugrad.metric"
"""The metric that counts, as JSON (`tasks.metric.Metric`); a run without it is judged by its accuracy."""
TAG_DATA: Final = "taugrad.data"
"""A hash of the run's data, if their source computes one (`data.Parts.fingerprint`)."""
TAG_HOLDER: Final = "taugrad.holder"
"""The process that trains the run, with its last heartbeat; absent if no process does."""

TAG_SEARCH: Final = "taugrad.search"
"""On a search's parent run: the search's name."""
TAG_PARENT: Final = "mlflow.parentRunId"
"""On a trial of a search: the search's run. This is MLflow's own tag, by which its UI nests runs."""
TAG_TRIAL: Final = "taugrad.trial"
"""On a trial of a search: its number."""
TAG_ENDING: Final = "taugrad.ending"
"""On a training of a search: the ending of its trial, full, pruned or failed."""
TAG_VIEW: Final = "taugrad.view"
"""On a run that the prepared view of an experiment of many runs shows: the view, such as `comparison`."""

# Artifacts.
ARTIFACT_LINKS: Final = "links.csv"
"""Messages and bytes from each worker to each other."""

ARTIFACT_TIMELINE: Final = "timeline.json"
"""What all workers did in a few steps, as a trace (`tracking.timeline.Timeline`)."""

# Params that readers look at.
PARAM_RULE: Final = "compressor.kind"
"""The rule's name."""
PARAM_TAU: Final = "compressor.tau"
"""The threshold, or the policy that decides it."""

WorkerQuantity = Literal[
    "staleness",  # in the mode async: mean age of the messages that it applied since the last drain
    "left_out",  # with a quorum: rounds that closed without it since the last evaluation or checkpoint
]
"""What is recorded of a single worker, at evaluations and checkpoints."""

LayerQuantity = Literal[
    "fraction",  # elements sent over elements
    "elements",  # elements of the layer
    "tau",  # its threshold
    "bits",  # value bits of an element sent
    "grad_p50",  # median of the gradient's magnitudes, before compression, of a sample
    "grad_p90",  # their 90th percentile
    "grad_p99",  # their 99th percentile
    "grad_p999",  # their 99.9th percentile
    "grad_rms",  # root mean square of the gradient, of a sample
    "zeros",  # share of the sample that is exactly zero
]
"""What is recorded of a layer: at intervals, and in each of the first iterations."""
FIRST_ITERATIONS: Final = 10
"""The number of these first iterations."""

_WHOLE = 1e4  # from here all digits before the point are more than four
_LONG_NUMBER = re.compile(r"(?<![\w.])\d+\.\d{3,}(?:e[+-]?\d+)?|(?<![\w.])\d\.?\d*e[+-]?\d+", re.IGNORECASE)
_REFUSED_IN_NAMES = re.compile(r"[^\w\-. :/]", re.ASCII)


def shown(name: str) -> str:
    """A name as people read it, numbers with four digits: `wgt(tau=0.16)` of `wgt(tau=0.15997382191)`."""
    return _LONG_NUMBER.sub(lambda match: _short(float(match[0])), name)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= _WHOLE else f"{value:.4g}"


def param(field: str) -> str:
    """The name of a field's param: its dotted name; what MLflow refuses, such as a pattern's *, becomes _."""
    return _REFUSED_IN_NAMES.sub("_", field)


def eval_metric(name: str) -> str:
    """The name in MLflow of a metric of an evaluation: `eval/<name>`."""
    return f"eval/{_REFUSED_IN_NAMES.sub('_', name)}"


def worker_metric(rank: int, what: WorkerQuantity) -> str:
    """The name of a worker's metric, `worker/<rank>/<what>`."""
    return f"worker/{rank}/{what}"


def layer_metric(layer: str, what: LayerQuantity) -> str:
    """The name of a layer's metric, `layer/<layer>/<what>`.

    The layer is the parameter's name in the model, such as `fc1.weight`. Characters that MLflow refuses in a
    metric's name become underscores.
    """
    return f"layer/{_REFUSED_IN_NAMES.sub('_', layer)}/{what}"
