"""Where backward passes of an FSDP2 model begin and end: it has hooks for what it reduces, and no others."""

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor

from .bucket.accumulated import nonzero_gradients
from .errors import CompressionError
from .torch_internals import after_backward, backward_id


class BackwardPasses:
    """The backward passes of one model, one after the other.

    Attributes:
        count: how many have begun.
    """

    def __init__(
        self, parameters: Callable[[], Mapping[str, Tensor]], begin: Callable[[set[str]], None],
        finish: Callable[[], None],
    ) -> None:  # fmt: skip
        """Follows a model's passes.

        Args:
            parameters: returns them by name, sharded, as optimizers have them.
            begin: called with the names of those whose gradients hold what an earlier pass has left.
            finish: called at the end of a pass, after FSDP2's own work.
        """
        self._parameters, self._begin, self._finish = parameters, begin, finish
        self._task: int | None = None
        """The pass that is under way."""
        self.count = 0

    def on_reduction(self) -> None:
        """Begins a pass with its first reduction.

        Raises CompressionError inside another pass, or after one that failed.
        """
        task = backward_id()
        if self._task == task:
            return
        if self._task is not None:
            raise CompressionError(
                "a backward pass inside another, or after one that failed: checkpoint activations with "
                "use_reentrant=False; after a failure, go on from a checkpoint"
            )
        self._task = task
        self.count += 1
        gradients = {name: parameter.grad for name, parameter in self._parameters().items()}
        local = {name: grad.to_local() for name, grad in gradients.items() if isinstance(grad, DTensor)}
        self._begin(set(nonzero_gradients(local)))
        after_backward(self._end)

    def _end(self) -> None:
        self._task = None
        self._finish()
