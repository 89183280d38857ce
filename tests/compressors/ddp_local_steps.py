"""Local steps as an object, with two workers, against a transcription that has all in one; see ddp.py."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import oracles
import torch
import torch.distributed as dist
from ddp import DEVICE, assert_alike, assert_same, everyone, new_group, refusal, scenario, through_a_file
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import LocalSteps, Outer
from taugrad.compressors.exchange import local_rounds
from taugrad.compressors.exchange.local_rounds import fragments_of
from taugrad.compressors.pattern_names import PatternName

Floats = NDArray[np.float32]
SPARSE = "strom(density(0.05, every=1)) | golomb_rice"
STEPS = 13
ADAM, SGD = "AdamW", "SGD"
NESTEROV = Outer(lr=0.7, momentum=0.9, nesterov=True)
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "every step": (SGD, {"every": 1}),
    "every third": (ADAM, {"every": 3}),
    "outer": (ADAM, {"every": 3, "outer": NESTEROV}),
    "weights": (SGD, {"every": 3, "exchange": "weights"}),
    "sharded": (SGD, {"every": 3, "pattern": "sharded"}),
    "ring": (SGD, {"every": 3, "pattern": "ring"}),
    "fragments": (ADAM, {"every": 4, "fragments": 2}),
    "by name": (ADAM, {"every": 4, "fragments": [["0", "2"], ["3"]], "outer": NESTEROV}),
    "late": (ADAM, {"every": 4, "delay_steps": 2, "outer": NESTEROV}),
    "late, half own": (ADAM, {"every": 4, "delay_steps": 2, "outer": NESTEROV, "blend": 0.5}),
    "late fragments": (ADAM, {"every": 4, "fragments": 2, "delay_steps": 3, "blend": 0.25}),
    "examples": (SGD, {"every": 3}),
    "examples late": (SGD, {"every": 3, "delay_steps": 1}),
    "by examples": (SGD, {"every_examples": 20}),
}
"""By name, the optimizer, and the arguments; every message holds everything."""
CONSERVED = ((0.0, 1, 0), (0.0, 2, 0), ("1/n", 1, 0), ("1/n", 2, 0), (0.0, 1, 1), ("1/n", 2, 1))
"""What is unsent in own weights, fragments and delay."""
OFFLOADED: dict[str, dict[str, Any]] = {
    "mean": {},
    "DiLoCo": {"outer": NESTEROV, "method": SPARSE},
    "late fragments": {
        "fragments": 2,
        "delay_steps": 2,
        "unsent": "1/n",
        "outer": NESTEROV,
        "method": SPARSE,
    },
    "blend": {"delay_steps": 1, "blend": 0.3, "method": SPARSE},
    "sharded": {"pattern": "sharded", "method": "chunked_topk(8, chunk=64) | quantile(bits=2) | chunked"},
    "weights": {"exchange": "weights", "method": "linear(8)"},
}
BATCHES = (12, 4)
"""Examples a step, by rank, where examples count."""


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 5)).to(DEVICE)


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    lr = 1e-2 if kind == ADAM else 0.1
    result: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters(), lr=lr)
    return result


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int, size: int) -> None:
    x = torch.randn(size, 6, generator=torch.Generator().manual_seed(1000 * rank + step)).to(DEVICE)
    (model(x) - x[:, :5].sin()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def steps_of(name: str, rank: int) -> int:
    """By examples, the workers come to four exchanges in unequal steps."""
    return (8, 20)[rank] if name == "by examples" else STEPS


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """float32, copies of all of them, one after the other."""
    return torch.cat([tensor.detach().float().flatten().cpu() for tensor in tensors])


class Transcription:
    """DiLoCo with fragments that arrive late (arXiv 2501.18512, algorithm 2), all workers in one process."""

    def __init__(self, name: str) -> None:
        self.name, (self.kind, more) = name, DENSE[name]
        self.every, self.delay = more.get("every", 0), more.get("delay_steps", 0)
        self.blend = more.get("blend")
        self.models = [network() for _ in range(2)]
        self.optimizers = [optimizer_of(self.kind, model) for model in self.models]
        names = [name for name, _ in self.models[0].named_parameters()]
        self.agreed = {name: tensor.detach().clone() for name, tensor in self.models[0].named_parameters()}
        self.momentum = {name: torch.zeros_like(weight) for name, weight in self.agreed.items()}
        outer = more.get("outer")
        self.lr, self.mu = (outer.lr, outer.momentum) if outer else (1.0, 0.0)
        fragments = more.get("fragments", 1)
        if isinstance(fragments, int):
            backwards = names[::-1]  # as gradients come
            sizes = [self.agreed[name].numel() for name in backwards]
            self.fragments = [[backwards[i] for i in part] for part in fragments_of(sizes, fragments)]
        else:
            self.fragments = [[n for n in names if n.split(".")[0] in part] for part in fragments]
        self.coming: list[Any] = []

    def change_of(self, worker: int, name: str) -> torch.Tensor:
        return dict(self.models[worker].named_parameters())[name].data

    def send(self, fragment: int, examples: list[float], at: int) -> None:
        """The mean of the workers' differences to the agreed weights, by their examples."""
        total = sum(examples)
        mean = {
            name: sum(
                n / total * (self.agreed[name] - self.change_of(worker, name))
                for worker, n in enumerate(examples)
            )
            for name in self.fragments[fragment]
        }
        buffers = [buffer.clone() for buffer in self.models[0].buffers()] if not fragment else []
        handed_in = [{name: self.change_of(worker, name).clone() for name in mean} for worker in range(2)]
        self.coming.append((at, fragment, mean, buffers, handed_in))

    def merge(self, step: int) -> None:
        ready = [round_ for round_ in self.coming if round_[0] <= step]
        self.coming = [round_ for round_ in self.coming if round_[0] > step]
        for _, number, mean, buffers, handed_in in ready:
            for name in self.fragments[number]:
                self.momentum[name] = self.mu * self.momentum[name] + mean[name]
                along = mean[name] + self.mu * self.momentum[name] if self.mu else mean[name]
                self.agreed[name] = self.agreed[name] - self.lr * along
                for worker in range(2):
                    change = self.change_of(worker, name)
                    if self.blend is None:  # the steps since then are kept
                        change.add_(self.agreed[name] - handed_in[worker][name])
                    else:
                        change.copy_(self.blend * change + (1 - self.blend) * self.agreed[name])
            for model in self.models if buffers else ():
                for to, buffer in zip(model.buffers(), buffers, strict=True):
                    to.copy_(buffer)

    def run(self) -> "Transcription":
        counts = "examples" in self.name
        if self.name == "by examples":  # 24 examples in two steps, 20 in five
            for exchange in range(4):
                for worker, (size, steps) in enumerate(((24, 2), (20, 5))):
                    for step in range(exchange * steps, (exchange + 1) * steps):
                        self.train(worker, step, size // steps)
                self.send(0, [24, 20], 0)
                self.merge(0)
            return self
        for step in range(1, steps_of(self.name, 0) + 1):
            for worker in range(2):
                self.train(worker, step - 1, BATCHES[worker] if counts else 8)
            self.merge(step)
            for number in range(len(self.fragments)):
                due = self.every * (number + 1) // len(self.fragments)
                if step >= due and (step - due) % self.every == 0:
                    self.send(number, list(BATCHES) if counts else [1, 1], step + self.delay)
            self.merge(step)
        return self

    def train(self, worker: int, step: int, size: int) -> None:
        train_step(self.models[worker], self.optimizers[worker], worker, step, size)


@scenario(2, values=DENSE)
def local_steps_that_send_everything_are_the_algorithm(name: str) -> None:
    kind, arguments = DENSE[name]
    rank, model = dist.get_rank(), network()
    if rank:  # all begin with rank 0's
        nn.init.zeros_(model[0].weight)
    optimizer = optimizer_of(kind, model)
    local = LocalSteps(model, optimizer, **arguments)
    counts = "examples" in name
    for step in range(steps_of(name, rank)):
        size = BATCHES[rank] if counts else 8
        train_step(model, optimizer, rank, step, size)
        local.step(**({"examples": size} if counts else {}))
    local_weights, expected = flat(model.parameters()), Transcription(name).run()
    assert local_weights.allclose(flat(expected.models[rank].parameters()), atol=2e-5)
    with local.agreed():
        agreed = flat(model.parameters())
    assert flat(model.parameters()).equal(local_weights)
    assert agreed.allclose(flat(expected.agreed.values()), atol=2e-5)
    assert_alike(agreed.tolist())
    assert (agreed - flat(network().parameters())).abs().max() > 0.01
    if name == "by examples" and not rank:  # one step more than the other, before its next exchange
        train_step(model, optimizer, rank, 8, BATCHES[rank])
        local.step(examples=BATCHES[rank])
    local.finish()
    finished = flat(model.parameters())
    assert not finished.equal(local_weights) or local_weights.equal(agreed)
    first, second = everyone(finished)
    assert first.equal(second) != ("blend" in arguments)  # each keeps a part of its own
    if name == "by examples":  # rank 0's last step
        assert not finished.equal(agreed)
    elif name == "every third":
        check_ledger(local)


def check_ledger(local: LocalSteps) -> None:
    totals, size = local.totals, flat(network().parameters()).numel()
    assert totals.elements == 13 * size
    assert totals.sent == 5 * size  # 4 rounds, and the last one
    assert 4 * totals.sent < totals.wire_bytes < 4.5 * totals.sent
    assert_alike(totals.wire_bytes)


@scenario(2, values=CONSERVED)
def agreed_weights_move_by_pseudo_gradients_less_residuals(setting: tuple[float | str, int, int]) -> None:
    """By the mean of what workers learned, less what they still owe."""
    (unsent, fragments, delay), model, rank = setting, network(), dist.get_rank()
    parts: dict[str, Any] = {"unsent": unsent, "fragments": fragments, "delay_steps": delay}
    optimizer = optimizer_of(ADAM, model)
    local = LocalSteps(model, optimizer, every=2, method=SPARSE, **parts)
    begin = {name: tensor.clone() for name, tensor in local.state_dict()["agreed"].items()}
    weights = dict(model.named_parameters())
    learned = torch.zeros(flat(begin.values()).numel(), dtype=torch.float64)
    for step in range(STEPS):
        learned += flat(weights[name] for name in begin).double()
        train_step(model, optimizer, rank, step, 8)
        learned -= flat(weights[name] for name in begin).double()
        local.step()
    local.finish()
    state = local.state_dict()
    residuals: dict[str, Tensor] = {}
    for tensor in state["rounds"]["fragments"]:
        residuals |= tensor["unsent"]["ranks"][str(rank)]["residuals"]
    agreed, local_weights = flat(state["agreed"].values()), flat(state["own"].values())
    residual = flat(residuals[name] for name in begin)
    assert_alike(agreed.tolist())
    sent = sum(everyone(learned - residual)) / 2
    assert torch.allclose((flat(begin.values()) - agreed).double(), sent, atol=1e-6)
    assert residual.abs().sum() > 0.01
    assert 0.01 < local.totals.fraction < 0.06
    # A worker ends where its next steps begin.
    assert local_weights.allclose(agreed - (0.5 if unsent == "1/n" else 0.0) * residual, atol=1e-6)


@scenario(2, values=["allgather", "sharded"])
def visible_elements_are_sent_as_pulseloco_says(pattern: PatternName) -> None:
    """Against a transcription of its rounds: FP32 pseudo-gradients, error feedback, DiLoCo's outer step."""
    rank, model = dist.get_rank(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    local = LocalSteps(model, optimizer, every=3, method="visible", outer=NESTEROV, pattern=pattern)
    names = list(local.state_dict()["agreed"])
    own, sent = dict(model.named_parameters()), 0
    size = sum(weights.numel() for weights in own.values())
    kept, kept_of_means, momentum = (np.zeros(size, np.float32) for _ in range(3))
    for number in range(5):
        theta = flat(local.state_dict()["agreed"].values()).numpy()
        for step in range(3 * number, 3 * number + 3):
            train_step(model, optimizer, rank, step, 8)
            learned = theta - flat(own[name] for name in names).numpy()
            local.step()
        update, kept = visible(kept + learned, theta)
        mean = np.divide(sum(everyone(update)), np.float32(2), dtype=np.float32)
        if pattern == "sharded":  # the owners of shards choose again
            mean, kept_of_means = visible(kept_of_means + mean, theta)
        momentum = np.float32(0.9) * momentum + mean
        agreed = flat(local.state_dict()["agreed"].values()).numpy()
        np.testing.assert_allclose(agreed, theta - 0.7 * (mean + 0.9 * momentum), rtol=0, atol=1e-7)
        state = local.state_dict()["rounds"]["fragments"][0]["unsent"]["ranks"][str(rank)]
        assert np.array_equal(flat(state["residuals"][name] for name in names).numpy(), kept)
        sent += np.count_nonzero(update)
    assert local.totals.sent == sent
    assert 0.02 < local.totals.sent / (5 * size) < 0.9


def visible(sums: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """What of the sums changes the weights' bfloat16, and the rest."""
    seen = oracles.bfloat16(weights - sums) != oracles.bfloat16(weights)
    return np.where(seen, sums, np.float32(0)), np.where(seen, np.float32(0), sums)


@scenario(2)
def moments_are_averaged_at_their_own_rhythm_as_in_des_loc() -> None:
    """Against a transcription of Local Adam with three periods: weights 2, first moments 3, second ones 6."""
    rank, every = dist.get_rank(), {"exp_avg": 3, "exp_avg_sq": 6}
    model, models = network(), [network() for _ in range(2)]
    optimizer, optimizers = optimizer_of(ADAM, model), [optimizer_of(ADAM, one) for one in models]
    local = LocalSteps(model, optimizer, every=2, moments_every=every)
    for step in range(1, STEPS):
        train_step(model, optimizer, rank, step, 8)
        local.step()
        for worker in range(2):
            train_step(models[worker], optimizers[worker], worker, step, 8)
        kept = [[*optimizers[worker].state.values()] for worker in range(2)]
        weights = zip(*(one.parameters() for one in models), strict=True)
        tensors = [pair for pair in weights if step % 2 == 0]
        for field in (field for field, steps in every.items() if step % steps == 0):
            tensors += [(one[field], other[field]) for one, other in zip(*kept, strict=True)]
        with torch.no_grad():
            for one, other in tensors:
                other.copy_(one.copy_((one + other) / 2))
            if step % 2 == 0:
                models[1][2].load_state_dict(models[0][2].state_dict())
        assert local.last_step.sent == sum(one.numel() for one, _ in tensors)
    assert flat(model.parameters()).allclose(flat(models[rank].parameters()), atol=1e-5)
    for field in every:
        mine = flat(optimizer.state[weight][field] for weight in model.parameters())
        assert mine.allclose(flat(state[field] for state in kept[rank]), atol=1e-5)
        assert_alike(mine.tolist())  # step 12
    local = LocalSteps(model, optimizer_of(SGD, model), every=2, moments_every={"exp_avg": 1})
    train_step(model, optimizer, rank, 0, 8)
    assert refusal(local.step).startswith("ValueError: moments_every: 'exp_avg': optimizers keep ")


@scenario(2)
def local_steps_that_go_on_from_a_state_end_with_the_same_bits() -> None:
    """It is saved while a fragment is on its way."""
    rank = dist.get_rank()

    class Training:
        def __init__(self) -> None:
            self.model = network()
            self.optimizer = optimizer_of(ADAM, self.model)
            options = {"every": 4, "fragments": 2, "delay_steps": 2, "unsent": "1/n", "outer": NESTEROV}
            self.local = LocalSteps(self.model, self.optimizer, method=SPARSE, **options)  # type: ignore[arg-type]

        def go(self, first: int, last: int) -> None:
            for step in range(first, last):
                train_step(self.model, self.optimizer, rank, step, 8 + rank)
                self.local.step(examples=8 + rank)

    whole, again = Training(), Training()
    whole.go(0, 5)
    saved = through_a_file(whole.local.state_dict())
    assert [row["in_flight"] is not None for row in saved["rounds"]["fragments"]] == [False, True]
    optimizer = through_a_file(whole.optimizer.state_dict())
    whole.go(5, STEPS)
    again.optimizer.load_state_dict(optimizer)
    again.local.load_state_dict(saved)
    again.go(5, STEPS)
    for of in (nn.Module.parameters, nn.Module.buffers):
        assert flat(of(again.model)).equal(flat(of(whole.model)))
    assert again.local.totals == whole.local.totals
    at_the_end = Training()
    at_the_end.local.load_state_dict(through_a_file(whole.local.state_dict()))
    for training in (whole, at_the_end):
        training.local.finish()
    assert flat(at_the_end.model.parameters()).equal(flat(whole.model.parameters()))
    for changes, words in (
        ({"rank": 1 - rank}, f"the state of rank {1 - rank} of 2 workers, this is rank {rank}"),
        ({"version": 0}, "version 0 of a state; this program reads 6"),
    ):
        said = refusal(lambda changes=changes: again.local.load_state_dict({**saved, **changes}))
        assert said.startswith(f"ValueError: {words}")


@scenario(2)
def what_a_thread_decodes_beside_the_training_is_not_its_time() -> None:
    for delay in (0, 1):
        model = nn.Linear(40, 3).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        local = LocalSteps(model, optimizer, every=2, delay_steps=delay, method="strom(0.001)")
        steps = []
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(5, 40, device=DEVICE)).square().mean().backward()
            optimizer.step()
            local.step()
            steps.append(local.last_step)
        assert sum(step.decompress_s for step in steps) > 0
        assert (sum(step.decode_s for step in steps) > 0) == (not delay)
        local.finish()


@scenario(2, values=OFFLOADED)
def agreed_weights_residuals_and_momentum_on_the_host_give_the_same_bits(name: str) -> None:
    """From beginning to end, or from a state on; the outer optimizer steps in many pieces."""
    rank, ends = dist.get_rank(), []
    with mock.patch.object(local_rounds, "_PIECE", 7):
        for begins, ends_with in product((False, True), repeat=2):
            model = network()
            optimizer = optimizer_of(ADAM, model)
            local = LocalSteps(model, optimizer, every=4, offload=begins, **OFFLOADED[name])
            for step in range(STEPS):
                if step == 5:
                    saved = through_a_file(local.state_dict())
                    local = LocalSteps(model, optimizer, every=4, offload=ends_with, **OFFLOADED[name])
                    local.load_state_dict(saved)
                train_step(model, optimizer, rank, step, 8)
                local.step()
            local.finish()
            with local.agreed():
                agreed = flat(model.parameters())
            kept = {what: local.state_dict()[what] for what in ("rounds", "shared", "traffic")}
            ends.append([kept, local.totals, agreed, flat(model.parameters())])
    for end in ends[1:]:
        assert_same(end, ends[0])


@scenario(2)
def fragments_under_way_weigh_by_their_own_examples_in_whatever_order_they_are_merged() -> None:
    """The second one was sent before the first one, which `finish` merges, and a state holds, first."""
    rank = dist.get_rank()
    ends = []
    for saves in (False, True):
        model = network()
        optimizer = optimizer_of(SGD, model)
        local = LocalSteps(model, optimizer, every=8, fragments=2, delay_steps=7)
        for step in range(STEPS):
            size = 2 + (3 * step + 5 * rank) % 11
            train_step(model, optimizer, rank, step, size)
            local.step(examples=size)
        state = through_a_file(local.state_dict()) if saves else None
        local.finish()
        if state is not None:
            assert [tensor["in_flight"]["merge_at"] for tensor in state["rounds"]["fragments"]] == [19, 15]
            local.load_state_dict(state)
            local.finish()
        with local.agreed():
            ends.append(flat(model.parameters()))
        assert_alike(ends[-1].tolist())
    assert ends[0].equal(ends[1])


class Late:
    """What runs rounds beside the training; they begin when somebody waits for them."""

    def submit(self, run: Callable[..., Any], *arguments: Any) -> Any:
        return SimpleNamespace(result=lru_cache(lambda: run(*arguments)))


@scenario(2)
def a_round_under_way_is_over_when_a_state_is_loaded() -> None:
    """All workers go back to where they were, such as for a loss that grew; a ring compresses at each hop."""
    rank, model = dist.get_rank(), network()
    optimizer = optimizer_of(SGD, model)
    local = LocalSteps(model, optimizer, every=2, delay_steps=1, pattern="ring", method=SPARSE)
    local._rounds.__dict__["_thread"] = Late()
    for step in range(2):
        saved = through_a_file(local.state_dict())
        train_step(model, optimizer, rank, step, 8)
        local.step()
    under_way = local._rounds.fragments[0].in_flight
    assert under_way is not None
    local.load_state_dict(saved)
    under_way.result()
    kept, wanted = (row["rounds"]["fragments"][0]["unsent"]["ranks"] for row in (local.state_dict(), saved))
    assert_same(kept, wanted)


@scenario(2)
def fragments_are_sent_in_turn_however_unequal_steps_are() -> None:
    """In its second step, worker 0 sends what worker 1 does in two; the first fragment comes last."""
    rank = dist.get_rank()
    model = network()
    optimizer = optimizer_of(SGD, model)
    local = LocalSteps(model, optimizer, every_examples=8, fragments=[["0", "2"], ["3"]])
    sent = []
    for step, size in enumerate(((5, 11), (4, 4, 4))[rank]):
        train_step(model, optimizer, rank, step, size)
        local.step(examples=size)
        sent.append(local.last_step.sent)
    last = flat(model[3].parameters()).numel()
    first = flat(model.parameters()).numel() - last
    assert sent == [[first, last + first], [first, last, first]][rank]
    with local.agreed():
        assert_alike(flat(model.parameters()).tolist())


@scenario(2)
def what_local_steps_cannot_do_is_refused_in_a_line() -> None:
    model = network()
    optimizer = optimizer_of(SGD, model)

    def local(model: nn.Module = model, optimizer: Any = optimizer, **arguments: Any) -> str:
        return refusal(lambda: LocalSteps(model, optimizer, **{"every": 4, **arguments}))

    frozen = network().requires_grad_(False)
    alone = [new_group([rank]) for rank in range(2)][dist.get_rank()]
    counted = LocalSteps(model, optimizer, every=4)
    counted.step(examples=3)
    for said, words in (
        (local(every=0), "ValueError: every = 0: must be a whole number of steps, at least 1"),
        (local(every=None), "ValueError: every and every_examples: give one of them"),
        (local(frozen), "ValueError: model has no parameter that requires a gradient"),
        (
            local(optimizer=optimizer_of(SGD, network())),
            "ValueError: optimizer steps no parameter of the model",
        ),
        (local(optimizer=[3]), "TypeError: optimizer is of int"),
        (local(group=alone), "ValueError: a group of one worker"),
        (local(key=b"too short"), "ValueError: a key of 9 bytes: it must have 16 at least"),
        (local(DistributedDataParallel(network())), "ValueError: model is in DistributedDataParallel"),
        (local(fragments=[["0", "5"], ["2", "3"]]), "ValueError: fragments[0]: '5' matches no parameter"),
        (local(fragments=[["0"]]), "ValueError: fragments: '3.bias' is in none of them, nor are 3 others"),
        (local(fragments=[["0", "2", "3"], ["0"]]), "ValueError: fragments: '0.bias' is in 0 and in 1"),
        (local(fragments=7), "ValueError: fragments = 7: must be from 1 to 6"),
        (
            local(delay_steps=4),
            "ValueError: delay_steps = 4 with every = 4: a fragment must have arrived before it is sent "
            "again; use at most 3",
        ),
        (local(blend=0.5), "ValueError: blend = 0.5: needs delay_steps above 0"),
        (
            local(exchange="gradients"),
            "ValueError: exchange = 'gradients': Input should be 'pseudo_gradients' or 'weights'",
        ),
        (local(method="powersgd(2)"), "ValueError: method.kind = powersgd: "),
        (local(downlink="fp16"), "ValueError: downlink = fp16 with allgather: only parameter_server"),
        (local(pattern="star"), "ValueError: pattern = 'star': Input should be 'allgather', 'hierarchical'"),
        (
            local(method={"kind": "wgt", "tau": 0.1, "exempt": {"names": ["head.*"]}}),
            "ValueError: exempt.names: 'head.*' matches no parameter",
        ),
        (
            local(every=None, every_examples=20, moments_every={"exp_avg": 9}),
            "ValueError: moments_every with every_examples: workers must take steps together; leave it out",
        ),
        (
            local(moments_every={"exp_avg": 0}),
            "ValueError: moments_every = {'exp_avg': 0}: exp_avg needs",
        ),
        (local(every=3 + dist.get_rank()), "WorkersDisagree: "),
        (refusal(counted.step), "ValueError: examples = None: give them in every step, or in none"),
        (
            refusal(lambda: counted.step(examples=-1)),
            "ValueError: examples = -1: must be a number of at least 0",
        ),
    ):
        assert said.startswith(words), said
        assert "\n" not in said
