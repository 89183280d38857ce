"""Runs of `taugrad auto` under Adam and its kin: local steps, and thresholds on what they came to.

A threshold on gradients lets Adam see an element rarely and then large, so that its second moment grows and
its steps shrink. Where each worker takes Adam's steps along its own whole gradients, and what they came to
meets the threshold, second moments are what they are without compression (docs/search.md).
"""

from taugrad.compressors.config import NoCompression
from taugrad.compressors.config.sparse import ThresholdedMethod
from taugrad.compressors.tau.density import DensityTau
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import SimulatedSync, WeightsSync, real

from .auto_specs import METHOD, named, with_method

ADAPTIVE = ("adam", "adamw", "lamb")
STEPS = ((10, 0.02), (4, 0.1), (2, 0.2))
"""Local steps between exchanges and the density of an exchange, the fewest bytes first."""
MODERATE = 1
"""The one of them that is taken where nothing is compared."""


def applies(spec: RunSpec) -> bool:
    """Whether local steps can take the place of gradients, which an adaptive optimizer gets by all-gather."""
    method = spec.compressor
    return (
        spec.training.optimizer.kind in ADAPTIVE
        and real(spec.sync).mode == "allgather"
        and isinstance(method, NoCompression | ThresholdedMethod)
        and method.nonfinite == "refuse"
        and spec.workers.count > 1
    )


def local_steps(spec: RunSpec, every: int, density: float, *, faster: bool = True) -> RunSpec:
    """The run with local steps instead of gradients.

    The rate is multiplied by the root of the number of workers: a worker's own gradients are noisier than
    their mean, its second moments that much larger, and Adam's steps smaller by the root. Of what it has not
    sent its own weights keep what that will be in the workers' mean.

    Args:
        spec: the run; see `applies`.
        every: steps between two exchanges.
        density: of an exchange, 0 to 1.
        faster: whether the rate is multiplied; not for optimizers without second moments.

    Raises:
        ValidationError: the method cannot work so.
    """
    method = None if isinstance(spec.compressor, ThresholdedMethod) else METHOD
    tau = DensityTau(target=density, every=1).model_dump(mode="json")
    tree = with_method(spec, method, {"tau": tau})
    mode = WeightsSync(every=every, unsent=1 / spec.workers.count)
    sync = SimulatedSync(of=mode) if isinstance(spec.sync, SimulatedSync) else mode
    tree["sync"] = sync.model_dump(mode="json")
    optimizer = tree["training"]["optimizer"]
    if faster:
        optimizer["lr"] = float(f"{optimizer['lr'] * spec.workers.count**0.5:.6g}")
    return named(spec, tree)
