"""The benchmark over slow links: DeMo against its paper written out (arXiv 2411.19870); page and records."""

import importlib
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from scipy.fft import dctn, idctn

from taugrad.platform.models.gpt import GptNetwork

demo = importlib.import_module("benchmarks.network.demo")
settings = importlib.import_module("benchmarks.network.target_settings")

WORKERS, STEPS, KEEP, DECAY, LR, WEIGHT_DECAY = 2, 3, 8, 0.9, 0.01, 0.1


def blocks(array: np.ndarray) -> list[tuple[slice, slice]]:
    """The largest that divide the array, of at most 64 x 64, row by row."""
    rows, columns = (max(n for n in range(1, 65) if size % n == 0) for size in array.shape)
    return [
        (slice(top, top + rows), slice(left, left + columns))
        for top in range(0, array.shape[0], rows)
        for left in range(0, array.shape[1], columns)
    ]


def as_matrix(gradient: torch.Tensor) -> np.ndarray:
    return np.atleast_2d(gradient.double().numpy())


def test_it_trains_as_its_paper_says(monkeypatch):
    gradients = defaultdict(list)

    class Recorded(GptNetwork):
        def __init__(self, *given):
            super().__init__(*given)
            for name, parameter in self.named_parameters():
                parameter.register_hook(partial(self.record, name))

        def record(self, name, gradient):
            gradients[name].append(gradient.clone())

    in_process = importlib.import_module("benchmarks.harness.in_process")
    trainings = importlib.import_module("benchmarks.harness.trainings")
    monkeypatch.setattr(demo, "GptNetwork", Recorded)
    monkeypatch.setitem(importlib.import_module("sys").modules, "demo", demo)
    base = settings.SLOW.base
    model = {"kind": "gpt", "layers": 1, "heads": 2, "width": 16}
    training = {**base["training"], "iterations": STEPS, "warmup": {}, "optimizer": {"kind": "sgd", "lr": LR}}
    workload = settings.replace(
        settings.SLOW, base={**base, "model": model, "training": training}, hosts=WORKERS
    )
    spec = workload.spec(settings.CONTENDERS["DeMo"].setting((1, 1.0, KEEP, DECAY)), 0)
    first = {}

    class Listener(in_process.Following):
        def stage(self, name):
            if name == "first iteration":
                parameters = self.trainer.sync.model.named_parameters()
                first.update({name: as_matrix(weight.detach()) for name, weight in parameters})

    trainings.begin()
    try:
        trainer = in_process.fit(spec.model_dump_json(), Listener())
    finally:
        torch.distributed.destroy_process_group()
    assert len(first) == len(gradients) > 5
    for name, parameter in trainer.sync.model.named_parameters():
        weights, momenta = first[name], [np.zeros(parameter.numel()) for _ in range(WORKERS)]
        places = blocks(weights)
        for step in range(STEPS):
            agreed = np.zeros(parameter.numel())
            for worker, momentum in enumerate(momenta):
                gradient = as_matrix(gradients[name][step * WORKERS + worker])
                momentum[:] = DECAY * momentum + np.concatenate(
                    [dctn(gradient[place], norm="ortho").ravel() for place in places]
                )
                for begin in range(0, momentum.size, 4096):
                    chunk = momentum[begin : begin + 4096]
                    largest = np.argsort(-np.abs(chunk))[:KEEP]
                    agreed[begin + largest] += chunk[largest] / WORKERS
                    chunk[largest] = 0
            update = np.empty_like(weights)
            for place, coefficients in zip(places, np.split(agreed, len(places)), strict=True):
                update[place] = idctn(coefficients.reshape(update[place].shape), norm="ortho")
            weights = weights - LR * (np.sign(update) + WEIGHT_DECAY * weights)
        off = np.abs(as_matrix(parameter.detach()) - weights) > 1e-5  # signs of sums that are nearly 0
        assert off.mean() < 0.01, name


@pytest.mark.parametrize("name", ["slow", "many"])
def test_the_page_is_what_its_records_say(monkeypatch, name):
    target = importlib.import_module("benchmarks.network.network_target")
    page = sorted(target.RESULTS.glob(f"*-network_target_{name}.md"))[-1].read_text(encoding="utf-8")

    def nothing_unknown(_, specs, **__):
        assert not specs, "the records lack a training that the page has"

    monkeypatch.setattr(target.Trainings, "train", nothing_unknown)
    monkeypatch.setattr(importlib.import_module("benchmarks.network.network_cells"), "over_link", None)
    trainings, cells = target.records(quick=False)
    links = {"slow": target.SLOW_LINKS, "many": target.MANY_LINKS}[name]
    workload = settings.WORKLOADS[name]
    searches = target.searches_of(workload, links, trainings)
    made, minutes = target.measure(searches, links, trainings, cells)
    assert len(made) > len(searches) + len(links)
    for table in made:
        for row in table.rows:
            assert f"| {' | '.join(row)} |" in page, table.title
    assert target.shown_times(workload, minutes) in (target.DOCS / "network.md").read_text(encoding="utf-8")


def test_the_first_screen_has_times_of_the_network_page():
    first_screen = importlib.import_module("benchmarks.network.first_screen")
    shown = "\n".join(first_screen.table())
    assert shown in first_screen.README.page.read_text(encoding="utf-8")
    assert "| strom (ours) | 51.6 s | 54.6 s | 44.5 s | 50.1 s |" in shown  # of two dates


@pytest.mark.parametrize(("knows", "score"), [(True, 1.0), (False, 0.25)])
def test_continuations_belong_to_the_beginnings_that_make_them_likely(knows, score):
    """Each text repeats one letter; a model that knows this is always right, one without is by chance."""
    continuations = importlib.import_module("benchmarks.network.continuations")
    examples = importlib.import_module("taugrad.platform.data.examples")
    letters = torch.arange(10).repeat_interleave(6).view(10, 6)

    class Repeats(torch.nn.Module):
        def forward(self, tokens):
            return torch.nn.functional.one_hot(tokens, 10) * (5.0 if knows else 0.0)

    assert continuations.continuation_score(Repeats(), examples.Tensors(letters, letters)) == score


def test_each_worker_has_its_own_part_of_the_text():
    texts = importlib.import_module("benchmarks.network.texts")
    examples = importlib.import_module("taugrad.platform.data.examples")
    batches = importlib.import_module("taugrad.platform.data.batches")
    rows = torch.arange(53)
    train = texts.TextByWorker(examples.Tensors(rows, rows), 4, 3)
    order = train.order(examples.Draw(seed=1, epoch=2))
    assert sorted(order) == list(range(48)) == list(range(len(train)))
    for rank in range(4):
        shares = [batches.worker_share(order, start, 12, rank, 4).indices for start in range(0, 48, 12)]
        assert sorted(np.concatenate(shares)) == list(range(12 * rank, 12 * (rank + 1)))
    assert list(order) != sorted(order)
