"""Tasks: their losses and metrics against plain arithmetic, users' own, and data that are for another one."""

import math

import numpy as np
import pytest
import torch
from feeds import refused

from taugrad.platform.data.shape import Shape
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.tasks import Classification, CustomTask, LanguageModel, Regression
from taugrad.platform.tasks import Task, build_task, try_task
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.tasks.metric import ACCURACY, LOSS, Metric
from taugrad.platform.user_code import UserCodeError

IMAGES, TEXT = Shape.image(1, 4, 4, 5), Shape.text(7, 11, bytes_per_token=2.5)
NUMBERS = Shape((3,), 2, "numbers")


def evaluated(task: Task, outputs: torch.Tensor, targets: torch.Tensor, blocks: int) -> dict[str, float]:
    """As an evaluation does it: sums of blocks, added."""
    parts = zip(outputs.tensor_split(blocks), targets.tensor_split(blocks), strict=True)
    sums = np.sum([[float(value) for value in task.sums(*part)] for part in parts], axis=0)
    return dict(task.evaluation(sums.tolist(), len(targets)))


def log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores.astype(np.float64)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def test_classification_is_cross_entropy_and_the_share_of_right_answers():
    outputs, targets = torch.randn(23, 5), torch.randint(5, (23,))
    task = build_task(Classification(), IMAGES)
    nats = -log_softmax(outputs.numpy())[np.arange(23), targets.numpy()]
    right = (outputs.numpy().argmax(1) == targets.numpy()).mean()
    assert task.loss(outputs, targets).item() == pytest.approx(nats.mean(), rel=1e-5)
    for blocks in (1, 4):
        result = evaluated(task, outputs, targets, blocks)
        assert result == {"accuracy": pytest.approx(right), "loss": pytest.approx(nats.mean(), rel=1e-5)}
    assert task.metrics[0] is ACCURACY


def test_a_language_model_is_judged_by_nats_a_token_perplexity_and_bits_a_byte():
    outputs, targets = torch.randn(6, 7, 11), torch.randint(11, (6, 7))
    task = build_task(LanguageModel(), TEXT)
    logs = log_softmax(outputs.numpy())
    nats = -np.take_along_axis(logs, targets.numpy()[..., None], -1).mean()
    assert task.loss(outputs, targets).item() == pytest.approx(nats, rel=1e-5)
    result = evaluated(task, outputs, targets, 3)
    assert result["loss"] == pytest.approx(nats, rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(nats), rel=1e-6)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / 2.5, rel=1e-6)
    assert task.terms(targets) == 42
    assert "bits_per_byte" not in [
        metric.name for metric in build_task(LanguageModel(), Shape.text(7, 11)).metrics
    ]


@pytest.mark.parametrize(
    ("config", "shape", "said"),
    [
        (Classification(), TEXT, "classification: this data has tokens as targets; choose language_model"),
        (LanguageModel(), IMAGES, "language_model: this data has classes as targets; choose classification"),
        (Classification(), NUMBERS, "this data has numbers as targets; choose regression"),
        (Regression(), TEXT, "this data has tokens as targets; choose language_model"),
    ],
)
def test_a_task_of_other_data_is_refused_with_the_one_that_fits(config, shape, said):
    with pytest.raises(ValueError, match=said):
        build_task(config, shape)


@pytest.fixture
def user_task(tmp_path, monkeypatch):
    (tmp_path / "taugrad_user_tasks.py").write_text(
        "import torch\n"
        "from taugrad.platform.tasks import Metric, Task\n"
        "class TopTwo(Task):\n"
        "    metrics = (Metric('top2', 'top-2 accuracy', '%', 100, 2, True), Metric('loss', 'loss'))\n"
        "    def __init__(self, smooth=0.0): self.smooth = smooth\n"
        "    def loss(self, outputs, targets):\n"
        "        return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=self.smooth)\n"
        "    def sums(self, outputs, targets):\n"
        "        right = (outputs.topk(2).indices == targets[:, None]).any(1).sum()\n"
        "        return right, self.loss(outputs, targets) * len(targets)\n"
        "    def evaluation(self, sums, examples):\n"
        "        return {'top2': sums[0] / examples, 'loss': sums[1] / examples}\n"
        "class NoLoss(TopTwo):\n    metrics = TopTwo.metrics[:1]\n"
        "class Raises(TopTwo):\n    def sums(self, outputs, targets): raise RuntimeError('no sums')\n"
        "class Vector(TopTwo):\n    def loss(self, outputs, targets): return outputs.sum(1)\n"
        "    def sums(self, outputs, targets): return 1, 1\n"
        "class Short(TopTwo):\n    def evaluation(self, sums, examples): return {'loss': 1.0}\n"
        "def function(): return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "taugrad_user_tasks"


def test_a_users_task_trains_and_its_metric_counts(user_task):
    config = CustomTask(factory=f"{user_task}:TopTwo", arguments={"smooth": 0.1})
    task = build_task(config, IMAGES)
    outputs, targets = torch.randn(30, 5), torch.randint(5, (30,))
    best = np.argsort(outputs.numpy(), 1)[:, -2:]
    right = (best == targets.numpy()[:, None]).any(1).mean()
    assert evaluated(task, outputs, targets, 4)["top2"] == pytest.approx(right)
    try_task(config, task, torch.nn.Linear(4, 5), torch.randn(2, 4), torch.tensor([1, 4]))
    metric = counting_metric(RunSpec(task=config))
    assert (metric.name, metric.shown(0.5), metric.sign) == ("top2", "50.00%", 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoLoss", "its metrics are top2; names must differ, and one must be loss"),
        ("function", "it is a int; a task is a subclass of taugrad.platform.tasks.Task"),
        ("Raises", "for 2 examples it raised RuntimeError: no sums"),
        ("Vector", "give a tensor with one number, the mean"),
        ("Short", "its evaluation has no top2, which its metrics name"),
    ],
)
def test_a_users_task_that_cannot_be_used_is_named_before_workers_start(user_task, name, said):
    config = CustomTask(factory=f"{user_task}:{name}")
    with refused(said, error=UserCodeError):
        task = build_task(config, IMAGES)
        try_task(config, task, torch.nn.Linear(4, 5), torch.randn(2, 4), torch.tensor([1, 4]))


def test_metrics_know_their_direction_and_survive_a_tag():
    for metric in (ACCURACY, LOSS):
        assert Metric.from_json(metric.to_json()) == metric
    assert ACCURACY.is_better(0.9, 0.8)
    assert LOSS.is_better(0.8, 0.9)
    assert not LOSS.is_better(math.nan, 0.9)
    assert LOSS.is_better(5.0, math.nan)
    assert (ACCURACY.shown(0.96384), LOSS.shown(2.05512)) == ("96.38%", "2.0551 nats")
    with pytest.raises(ValueError, match="no metric"):
        Metric.from_json("{}")
