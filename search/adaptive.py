"""Runs of `taugrad auto` with Adam, AdamW or LAMB: local steps, with a threshold on their result.

With a threshold on gradients, Adam sees an element rarely, and then a large value: its second moment grows,
and its steps shrink. If each worker takes Adam steps with its own whole gradients, and only the result of the
steps meets the threshold, second moments are as without compression (docs/adamw.md).
"""

from taugrad.compressors.method import NoCompression
from taugrad.compressors.method.policies import DensityTau
from taugrad.compressors.method.sparse import ThresholdedMethod
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import WeightsSync, in_mode, real

from .advice import ADAPTIVE, local_rate
from .auto_specs import METHOD, named, with_method

STEPS = ((10, 0.02), (4, 0.1), (2, 0.2))
"""Local steps between exchanges and the density of an exchange, the fewest bytes first."""
MODERATE = 1
"""The one of them that is used if nothing is compared."""


def applies(spec: RunSpec) -> bool:
    """Whether local steps can replace the exchange of gradients of an adaptive optimizer."""
    method = spec.compressor
    return (
        spec.training.optimizer.kind in ADAPTIVE
        and real(spec.sync).mode == "allgather"
        and isinstance(method, NoCompression | ThresholdedMethod)
        and method.nonfinite == "refuse"
        and spec.workers.count > 1
    )


def local_steps(spec: RunSpec, every: int, density: float) -> RunSpec:
    """The run with local steps instead of gradients.

    The learning rate is that of local steps (`advice.local_rate`). A worker's own weights keep the part of
    its residual that the residual will have in the workers' mean.

    Args:
        spec: the run; see `applies`.
        every: steps between two exchanges.
        density: of an exchange, 0 to 1.

    Raises:
        ValidationError: the method does not work with local steps.
    """
    method = None if isinstance(spec.compressor, ThresholdedMethod) else METHOD
    tau = DensityTau(target=density, every=1).model_dump(mode="json")
    tree = with_method(spec, method, {"tau": tau})
    mode = WeightsSync(every=every, unsent=1 / spec.workers.count)
    tree["sync"] = in_mode(spec.sync, mode).model_dump(mode="json")
    optimizer = tree["training"]["optimizer"]
    optimizer["lr"] = local_rate(optimizer["lr"], spec.workers.count)
    return named(spec, tree)
