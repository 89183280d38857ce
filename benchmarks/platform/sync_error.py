"""How far what workers agree on is from the true mean of their gradients, for platform/synchronization.py.

A model learns from what a pattern's simulated workers agree on; in every step that is compared with the mean
in float64. A ring compresses a partial sum anew at each of its N - 1 hops, shards compress twice, all-gather
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from taugrad.compressors.method import Method, read_config
from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.data.batches import epoch_order, worker_share
from taugrad.platform.data.config import Mnist5k
from taugrad.platform.data.feeding import Batch
from taugrad.platform.models import build
from taugrad.platform.models.config import LeNet
from taugrad.platform.synchronization.patterns import AllGather, Pattern, Ring, Setting, Sharded
from taugrad.platform.synchronization.rounds import Participant
from taugrad.platform.synchronization.runner import SimulatedRunner
from taugrad.platform.synchronization.traffic import Traffic
from taugrad.platform.tasks.classification import ClassificationTask
from taugrad.platform.training.batch_plan import BatchPlan, Position
from taugrad.platform.training.config import TrainingConfig
from taugrad.platform.training.replica import Replica

_SEED = 0


@dataclass(frozen=True)
class Errors:
    """Of one pattern, method and number of workers."""

    step: float
    """Norm of the difference over the norm of the true mean, mean of the steps."""
    total: float
    """The same of the sums over all steps: what residuals have not made up for by the end."""
    accuracy: float


class _Learner:
    """A model, its data, and N workers that agree by a pattern."""

    def __init__(self, pattern: str, line: str, workers: int, epochs: int) -> None:
        self.data = data = _digits()
        torch.manual_seed(_SEED)
        model = build(LeNet(), data.shape)
        training = TrainingConfig(epochs=epochs)
        self.replica = Replica(model, ClassificationTask(), training, workers)
        self.plan = BatchPlan(training, len(data.train))
        self._runner = SimulatedRunner(workers)
        like = [weights.clone() for weights in self.replica.weights()]
        setting = partial(Setting, self.replica.names, like, workers=workers)
        method: Method = read_config(line)
        self._patterns = [_pattern(pattern, method, setting(rank=rank)) for rank in range(workers)]

    def step(self, position: Position) -> tuple[Tensor, Tensor]:
        """Learns from one batch.

        Returns:
            What the workers agreed on and the mean of their gradients, float64 [all elements].
        """
        workers = self._runner.workers
        order = epoch_order(len(self.data.train), _SEED, position.epoch)
        truth = torch.zeros(sum(each.numel() for each in self.replica.parameters), dtype=torch.float64)
        participants = []
        for rank, pattern in enumerate(self._patterns):
            share = worker_share(order, position.start, position.batch_size, rank, workers)
            inputs, labels = self.data.train.batch(share.indices, None)
            self.replica.backward(Batch(inputs, labels, share.weight))
            gradients = self.replica.take_gradients()
            truth += torch.cat(gradients).double() / workers
            participants.append(Participant(pattern.rounds(gradients, position.done)))
        agreed = self._patterns[0].assemble(self._runner.run(participants, Traffic(workers)))
        for pattern in self._patterns:
            pattern.commit()
        self.replica.put_gradients(agreed)
        self.replica.step(position)
        return agreed.double(), truth

    @torch.no_grad()
    def accuracy(self) -> float:
        """On the test examples; a fraction."""
        scores = self.replica.model(self.data.test_inputs)
        return float((scores.argmax(1) == self.data.test_labels).double().mean())


@cache
def _digits() -> DataSet:
    return load_data(Mnist5k())


def _pattern(name: str, method: Method, setting: Setting) -> Pattern:
    match name:
        case "allgather":
            return AllGather(method, setting)
        case "ring":
            return Ring(method, setting)
        case "sharded":
            return Sharded(method, method, setting, owners=setting.workers)
    raise ValueError(f"{name}: allgather, ring or sharded")


def measure_errors(pattern: str, line: str, workers: int, epochs: int, steps: int | None = None) -> Errors:
    """Trains LeNet on the digits.

    Args:
        pattern: allgather, ring or sharded.
        line: the method.
        workers: simulated.
        epochs: of training.
        steps: stop after so many; None trains to the end.
    """
    learner = _Learner(pattern, line, workers, epochs)
    relative: list[float] = []
    agreed_sum = truth_sum = torch.zeros(())
    for done in range(learner.plan.iterations if steps is None else steps):
        agreed, truth = learner.step(learner.plan.position(done))
        relative.append(_relative(agreed, truth))
        agreed_sum, truth_sum = agreed_sum + agreed, truth_sum + truth
    return Errors(_mean(relative), _relative(agreed_sum, truth_sum), learner.accuracy())


def _relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
