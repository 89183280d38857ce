"""Hybrid parallelism against one process, in float64: every scheme, forward and backward, with dropout.

Legend: K workers, n examples of the whole batch, F features.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import cast

import numpy as np
import oracles
import pytest
import torch
from cases import in_turn
from torch import Tensor, nn

from taugrad.compressors.bucket.ledger import Step, Traffic
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.lockstep import Coroutine, run_lockstep
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.platform.data.batch_plan import Position
from taugrad.platform.data.feeding import Batch
from taugrad.platform.models.convnets import lenet, nin, resnet, vgg16
from taugrad.platform.models.mlp import mlp
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.models import LeNet, NetworkInNetwork, ResNet, Vgg16
from taugrad.platform.spec.synchronization import HybridSync
from taugrad.platform.spec.training import TrainingConfig
from taugrad.platform.synchronization.hybrid.exchange import ActivationExchange, DenseMessages
from taugrad.platform.synchronization.hybrid.layers import ExampleRows, two_parts
from taugrad.platform.synchronization.hybrid.worker import Computed, HybridWorker, Scheme, turns_of
from taugrad.platform.tasks.builtin import ClassificationTask

SEED, DONE = 11, 5
CLASSES = 10
RATE = 0.05
TRAINING = TrainingConfig.model_validate(
    {"optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0}}
)
COUNTS = {1: [[7]], 2: [[4, 3], [5, 0]], 3: [[3, 3, 2], [2, 0, 0]], 4: [[6, 5, 5, 5], [2, 2, 1, 1]]}
"""Of the examples of each of K workers; with few, turns and workers go without."""


def little() -> nn.Sequential:
    """Uneven neurons, fewer of them than 4 workers, and dropouts in three places."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Sequential(nn.Conv2d(1, 3, 5), nn.Tanh(), nn.MaxPool2d(4)),
            flatten=nn.Flatten(),
            fc=nn.Sequential(
                OrderedDict[str, nn.Module](
                    drop=nn.Dropout(0.3),
                    one=nn.Linear(27, 11),
                    act=nn.Sigmoid(),
                    drop2=nn.Dropout(0.5),
                    two=nn.Linear(11, 3, bias=False),
                    act2=nn.ReLU(inplace=True),
                    drop3=nn.Dropout(0.1),
                    three=nn.Linear(3, CLASSES),
                )
            ),
        )
    )


class KnownDropout(nn.Module):
    """A dropout whose masks are given by example."""

    def __init__(self, number: int, p: float) -> None:
        super().__init__()
        self.number, self.p = number, p
        self.rows = slice(0, 0)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = torch.arange(self.rows.stop)[self.rows]
        kept = ExampleRows(SEED, DONE, rows).kept(self.number, self.p, 0, inputs.shape[1])
        return inputs * kept.double() / (1 - self.p)


def one_process(model: nn.Sequential) -> nn.Sequential:
    """A copy of a model with known dropouts."""
    copy = deepcopy(model)
    number = 0
    for parent in list(copy.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Dropout):
                setattr(parent, name, KnownDropout(number, module.p))
                number += 1
    return copy


def made(build: Callable[[], nn.Sequential]) -> nn.Sequential:
    torch.manual_seed(3)
    return build().double()


class Scores(ClassificationTask):
    """Keeps what it was asked the loss of."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.seen.append(outputs.detach().clone())
        return super().loss(outputs, targets)


def batch_of(counts: Sequence[int]) -> tuple[Tensor, Tensor, list[Batch]]:
    """A whole batch and each worker's part; those without examples get the first one, as `feed` gives it."""
    torch.manual_seed(sum(counts))
    inputs = torch.randn(sum(counts), 1, 16, 16, dtype=torch.float64)
    targets = torch.randint(CLASSES, (sum(counts),))
    batches, start = [], 0
    for count in counts:
        weight = count * len(counts) / sum(counts)
        part = slice(start, start + count) if count else slice(0, 1)
        batches.append(Batch(inputs[part], targets[part], weight))
        start += count
    return inputs, targets, batches


def run(
    model: nn.Sequential,
    batches: Sequence[Batch],
    scheme: Scheme,
    training: TrainingConfig = TRAINING,
    *,
    per_worker: bool = False,
    summed: bool = False,
) -> tuple[list[HybridWorker], list[Computed], list[Scores]]:
    """One iteration of all workers."""
    workers, tasks = len(batches), [Scores() for _ in batches]
    mode = HybridSync(scheme=scheme, fc_batch="per_worker" if per_worker else "joined")
    compressor = read_config(f"none(reduction='{'sum' if summed else 'mean'}')")
    spec = RunSpec(seed=SEED, training=training, compressor=compressor)
    team = [
        HybridWorker(two_parts(model), task, spec, mode, rank, workers) for rank, task in enumerate(tasks)
    ]
    position = Position(0, DONE, 100, DONE, sum(len(batch) for batch in batches), 100)
    coroutines = [
        worker.iterate(batch, position, nullcontext, ActivationExchange(carrier, torch.float64))
        for worker, batch, carrier in zip(team, batches, in_memory(workers), strict=True)
    ]
    return team, run_lockstep(coroutines), tasks


def convolutional_gradients(model: nn.Sequential, computed: Sequence[Computed]) -> list[dict[str, Tensor]]:
    """Each worker's own, by name."""
    convolutional = two_parts(model).convolutional
    results = []
    for result in computed:
        convolutional.zero_grad()
        if result.features is not None:
            result.features.backward(result.gradient)
        results.append(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for name, p in convolutional.named_parameters()
            }
        )
    return results


def whole(team: Sequence[HybridWorker], gradient: bool = True) -> dict[str, Tensor]:
    """The fully connected layers' gradients, or weights, put together from the workers' neurons."""
    parts: dict[str, list[Tensor]] = {}
    for worker in team:
        for layer in worker.layers:
            for name, parameter in layer.named_parameters():
                value = parameter.grad if gradient else parameter.detach()
                parts.setdefault(f"{layer.name}.{name}", []).append(value)
    return {name: torch.cat(part) for name, part in parts.items()}


def forward(model: nn.Sequential, inputs: Tensor, rows: slice) -> Tensor:
    for module in model.modules():
        if isinstance(module, KnownDropout):
            module.rows = rows
    return cast(Tensor, model(inputs[rows]))


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, result in actual.items():
        torch.testing.assert_close(result, expected[name], rtol=1e-10, atol=1e-10, msg=name)


@in_turn("reduction", ["mean", "sum"])
@in_turn("workers", [1, 2, 3, 4])
@in_turn("scheme", ["a", "b", "c"])
def test_every_scheme_is_one_process_forward_and_backward(scheme, workers, reduction):
    training = TRAINING.model_copy(update={"loss_reduction": reduction})
    for counts in COUNTS[workers]:
        model = made(little)
        inputs, targets, batches = batch_of(counts)
        n = len(targets)
        reference = one_process(model)
        scores = forward(reference, inputs, slice(0, n))
        # One process sums up its examples' losses; K workers average their sums.
        loss = nn.functional.cross_entropy(scores, targets, reduction=reduction)
        (loss / workers if reduction == "sum" else loss).backward(retain_graph=True)
        expected = {key: p.grad for key, p in reference.named_parameters() if p.grad is not None}

        team, computed, tasks = run(model, batches, scheme, training)

        places = [
            sum(counts[:worker]) + row
            for turn in turns_of(scheme, counts)
            for worker, rows in enumerate(turn)
            for row in rows
        ]
        assert sorted(places) == list(range(n))
        for task in tasks:
            torch.testing.assert_close(torch.cat(task.seen), scores[places].detach(), rtol=1e-10, atol=1e-10)
        mean_loss = nn.functional.cross_entropy(scores, targets).item()
        assert all(result.loss == pytest.approx(mean_loss, rel=1e-12) for result in computed)
        assert_close(whole(team), {key: value for key, value in expected.items() if key.startswith("fc.")})
        # A worker's convolutions get the gradient of its own weighted loss, as in data parallelism.
        for worker, gradients in enumerate(convolutional_gradients(model, computed)):
            rows = slice(sum(counts[:worker]), sum(counts[: worker + 1]))
            loss = nn.functional.cross_entropy(scores[rows], targets[rows], reduction="sum")
            loss = loss if reduction == "sum" else loss * workers / n
            kept = {key: p for key, p in reference.named_parameters() if key in gradients}
            assert len(kept) + len(whole(team)) == len(expected)
            own = torch.autograd.grad(loss, list(kept.values()), retain_graph=True)
            assert_close(gradients, dict(zip(kept, own, strict=True)))


@in_turn("workers", [2, 3, 4])
@in_turn("scheme", ["b", "c"])
def test_with_a_batch_for_each_worker_the_fully_connected_layers_take_a_step_after_each_turn(scheme, workers):
    """The paper's variable batch: a turn's mean gradient moves them at once, the convolutions wait."""
    for counts in COUNTS[workers]:
        model = made(little)
        inputs, targets, batches = batch_of(counts)
        n = len(targets)
        reference = one_process(model)
        learned = {key: p for key, p in reference.named_parameters() if key.startswith("fc.")}
        kept = {key: p for key, p in reference.named_parameters() if key not in learned}
        summed = {key: torch.zeros_like(p) for key, p in kept.items()}
        for turn in turns_of(scheme, counts):
            rows = [sum(counts[:worker]) + row for worker, rows_ in enumerate(turn) for row in rows_]
            scores = forward(reference, inputs, slice(0, n))[rows]
            loss = nn.functional.cross_entropy(scores, targets[rows])
            parameters = [*learned.values(), *kept.values()]
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(learned.values(), gradients, strict=False):
                    parameter.sub_(RATE * gradient)
            for key, gradient in zip(kept, gradients[len(learned) :], strict=True):
                summed[key] += len(rows) / n * gradient

        team, computed, _ = run(model, batches, scheme, per_worker=True)

        assert_close(whole(team, gradient=False), {key: p.detach() for key, p in learned.items()})
        by_worker = convolutional_gradients(model, computed)
        assert_close(
            {key: sum(gradients[key] for gradients in by_worker) / workers for key in by_worker[0]}, summed
        )


def test_summed_gradients_are_those_of_all_workers():
    model = made(lambda: lenet(LeNet(), 1, 16, 16, CLASSES))
    _, _, batches = batch_of([3, 3, 2])
    mean, summed = (whole(run(model, batches, "b", summed=summed)[0]) for summed in (False, True))
    assert_close(summed, {key: 3 * tensor for key, tensor in mean.items()})


def test_masks_do_not_depend_on_who_draws_them_and_drop_the_share_asked_for():
    rows = torch.arange(200)
    everything = ExampleRows(7, 3, rows).kept(1, 0.3, 0, 500)
    for part, columns in ((torch.tensor([5, 190, 6]), (100, 340)), (rows[:1], (499, 500))):
        result = ExampleRows(7, 3, part).kept(1, 0.3, *columns)
        assert torch.equal(result, everything[part][:, columns[0] : columns[1]])
    # 100,000 draws: four standard deviations.
    assert everything.double().mean().item() == pytest.approx(0.7, abs=4 * (0.21 / 1e5) ** 0.5)
    for other in (ExampleRows(8, 3, rows), ExampleRows(7, 4, rows)):
        alike = (other.kept(1, 0.3, 0, 500) == everything).double().mean().item()
        assert alike == pytest.approx(0.49 + 0.09, abs=0.01)
    assert not torch.equal(ExampleRows(7, 3, rows).kept(2, 0.3, 0, 500), everything)
    assert ExampleRows(7, 3, rows).kept(0, 0.0, 0, 500).all()
    assert not ExampleRows(7, 3, rows).kept(0, 1.0, 0, 500).any()


def in_parts(**after: nn.Module) -> nn.Sequential:
    layers = {"conv": nn.Conv2d(1, 2, 3), "flatten": nn.Flatten()} | after
    return nn.Sequential(OrderedDict[str, nn.Module](layers))


TIED = in_parts(one=nn.Linear(8, 8), two=nn.Linear(8, 8))
TIED.two.weight = TIED.one.weight
REFUSED = {
    "MLP": (mlp(16, (8,), 10, "tanh", activate_outputs=False), "nothing before flatten is trained"),
    "NIN": (nin(NetworkInNetwork(), 3, 32, 32, 10), "is an nn.Linear: nothing can be sharded|does not name"),
    "linear": (nn.Linear(3, 2), "the model is a Linear that does not name its two parts"),
    "norm": (
        in_parts(fc=nn.Linear(8, 4), norm=nn.BatchNorm1d(4)),
        "norm is a BatchNorm1d: after flatten, each neuron must depend on the layer before it only",
    ),
    "tied": (TIED, "two shares a parameter with another layer"),
}


@in_turn("name", REFUSED)
def test_a_model_that_has_no_two_parts_is_refused_with_the_reason(name):
    model, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        two_parts(model)


def test_parts_have_the_names_that_their_parameters_have_in_the_model():
    for model in (
        vgg16(Vgg16(form="small", width_multiplier=0.05), 3, 32, 32, 10),
        vgg16(Vgg16(form="imagenet", width_multiplier=0.01), 3, 32, 32, 10),
        lenet(LeNet(), 1, 28, 28, 10),
        resnet(ResNet(), 3, 32, 32, 10),
    ):
        parts = two_parts(model)
        convolutional = [name for name, _ in parts.convolutional.named_parameters()]
        linear = [
            f"{name}.{p}" for name, module in parts.fully_connected for p, _ in module.named_parameters()
        ]
        assert convolutional + linear == [name for name, _ in model.named_parameters()]
        assert linear
        assert all(name.split(".")[0].startswith("fc") for name in linear)


def quantized(line: str, tensor: Tensor) -> Tensor:
    """Transcribes a method for a tensor of up to 256 values: blocks run over it row by row."""
    values, n = tensor.numpy().ravel(), tensor.numel()
    if line == "bf16":
        return tensor.bfloat16().float()
    if line.startswith("entropy"):
        shares = np.bincount(oracles.linear(values, 4).symbols) / n
        bits = round(float(-(shares[shares > 0] * np.log2(shares[shares > 0])).sum()) + 1)
        blocks = [oracles.linear(values, bits)]
    else:
        transcribed = oracles.linear if line.startswith("linear") else oracles.quantile
        blocks = [transcribed(values[start : start + 32], 3) for start in range(0, n, 32)]
    return torch.from_numpy(np.concatenate([block.values for block in blocks])).view_as(tensor)


@in_turn("line", ["bf16", "linear(3, block=32)", "quantile(3, block=32)", "entropy(floor=1) | huffman"])
def test_tensors_arrive_as_their_method_quantizes_them(line):
    """Those of a worker itself, too; one that is not finite somewhere is NaN everywhere, on all workers."""
    workers, torch_random = 3, torch.Generator().manual_seed(7)
    rows = [11, 0, 25]
    tensors = [torch.randn(count, 9, generator=torch_random) for count in rows]
    parts = [[torch.randn(count, 9, generator=torch_random).T for count in rows] for _ in range(workers)]
    parts[2][0][3, 1] = torch.inf
    method = cast(CompressedMethod, read_config(line))
    encoding = torch.bfloat16 if line == "bf16" else DenseMessages(method, CPU)

    def exchanged(exchange: ActivationExchange) -> Coroutine[list[list[Tensor]]]:
        pending = exchange.to_all("rows", tensors[exchange.rank], [(count, 9) for count in rows])
        owned = exchange.to_owners("parts", parts[exchange.rank])
        return [(yield from exchange.taken(pending)), (yield from exchange.taken(owned))]

    exchanges = [ActivationExchange(carrier, encoding) for carrier in in_memory(workers)]
    for rank, (to_all, to_owner) in enumerate(run_lockstep([exchanged(exchange) for exchange in exchanges])):
        for sent, received in (
            *zip(tensors, to_all, strict=True),
            *zip([part[rank] for part in parts], to_owner, strict=True),
        ):
            whole = line == "bf16" or (sent.numel() and sent.isfinite().all())
            expected = quantized(line, sent) if whole else sent * torch.nan
            torch.testing.assert_close(received, expected, rtol=0, atol=0, equal_nan=True)
    step, traffic = Step(), Traffic(workers)
    for exchange in exchanges:
        exchange.count(step, traffic)
    assert step.received_bytes == traffic.sums.received_bytes == traffic.link_bytes.sum() > 0
