"""What only the first iteration would wait for, done before it: kernels are compiled, libraries set up."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.method import CompressedMethod, Method
from taugrad.compressors.observe import gradient_statistics
from taugrad.compressors.wire.message import NonFinite

from ..data.examples import Examples
from ..data.feeding import first_batch
from ..spec import RunSpec
from ..synchronization.config import real
from ..tasks.base import Task
from .generators import generator_states, restore_generators
from .replica import Replica

_SHARES = (0.0, 0.001, 0.02, 0.3, 1.0)
"""Of elements that are sent."""
_LARGE = 1e3
"""Above any threshold that makes sense."""


def warm_up(spec: RunSpec, model: nn.Module, task: Task, examples: Examples, device: torch.device) -> None:
    """Makes a step with a copy of the model, and sends it to nobody.

    Random numbers go on as if it had not happened, and nothing of it is kept.

    Args:
        spec: the run.
        model: stays as it is; one that cannot be copied is left alone, and its first iteration takes longer.
        task: what it is trained for.
        examples: the training part.
        device: the model's.
    """
    try:
        copy = deepcopy(model)
    except Exception:  # whatever a user's module does when it is copied; training needs no copy
        return
    kept = generator_states()
    try:
        replica = Replica(copy, task, spec.training.model_copy(update={"compile": False}), spec.workers.count)
        replica.backward(
            first_batch(examples, max(1, spec.training.batch_size // spec.workers.count), device)
        )
        replica.optimizer.step()
    finally:
        restore_generators(kept)
    gradients = replica.take_gradients()
    for method in (spec.compressor, getattr(real(spec.sync), "back", None)):
        if method is not None:
            _compress(method, replica.names, gradients)
    gradient_statistics(gradients[0])


def _compress(method: Method, names: list[str], gradients: list[Tensor]) -> None:
    """Compresses and reads what gradients may look like: how much is sent decides which codec writes it."""
    if not isinstance(method, CompressedMethod):
        return
    total = torch.cat(gradients)
    worker = FeedbackCompressor(method, names, gradients, threads=torch.get_num_threads())
    generator = torch.Generator(total.device).manual_seed(0)
    drawn = torch.rand(len(total), generator=generator, device=total.device)
    sizes = [each.numel() for each in gradients]
    few_to_all = [list(torch.split(_LARGE * (drawn < share), sizes)) for share in _SHARES]
    for iteration, each in enumerate([gradients, *few_to_all]):
        received = worker.read(worker.compress(each, iteration).payload)
        if not isinstance(received, NonFinite):
            worker.compressor.add(received, total)
            worker.compressor.total([received], 1, total)
