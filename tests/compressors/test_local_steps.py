"""Local steps as an object, with two processes, against a transcription that has all workers in one."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from taugrad.compressors.exchange.local_rounds import fragments_of

from .local_steps_process import BATCHES, CONSERVED, DENSE, flat, network, optimizer_of, steps_of, train_step

SCRIPT = Path(__file__).with_name("local_steps_process.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank, what each scenario came to; all run in one group."""
    folder = tmp_path_factory.mktemp("local")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += ["--master-addr=127.0.0.1", f"--master-port={port}", str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


BLENDED = [name for name, (_, arguments) in DENSE.items() if "blend" in arguments]


class Transcription:
    """DiLoCo with fragments that arrive late (arXiv 2501.18512, algorithm 2), all workers in one process."""

    def __init__(self, name: str) -> None:
        self.name, (self.kind, more) = name, DENSE[name]
        self.every, self.delay = more.get("every", 0), more.get("delay", 0)
        self.blend = more.get("blend")
        self.models = [network() for _ in range(2)]
        self.optimizers = [optimizer_of(self.kind, each) for each in self.models]
        names = [name for name, _ in self.models[0].named_parameters()]
        self.agreed = {name: each.detach().clone() for name, each in self.models[0].named_parameters()}
        self.momentum = {name: torch.zeros_like(each) for name, each in self.agreed.items()}
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

    def own(self, worker: int, name: str) -> torch.Tensor:
        return dict(self.models[worker].named_parameters())[name].data

    def send(self, fragment: int, examples: list[float], at: int) -> None:
        """The mean of the workers' differences to the agreed weights, by their examples."""
        total = sum(examples)
        mean = {
            name: sum(
                n / total * (self.agreed[name] - self.own(worker, name)) for worker, n in enumerate(examples)
            )
            for name in self.fragments[fragment]
        }
        buffers = [each.clone() for each in self.models[0].buffers()] if not fragment else []
        handed_in = [{name: self.own(worker, name).clone() for name in mean} for worker in range(2)]
        self.coming.append((at, fragment, mean, buffers, handed_in))

    def merge(self, step: int) -> None:
        ready = [each for each in self.coming if each[0] <= step]
        self.coming = [each for each in self.coming if each[0] > step]
        for _, fragment, mean, buffers, handed_in in ready:
            for name in self.fragments[fragment]:
                self.momentum[name] = self.mu * self.momentum[name] + mean[name]
                along = mean[name] + self.mu * self.momentum[name] if self.mu else mean[name]
                self.agreed[name] = self.agreed[name] - self.lr * along
                for worker in range(2):
                    own = self.own(worker, name)
                    if self.blend is None:  # the steps since then are kept
                        own.add_(self.agreed[name] - handed_in[worker][name])
                    else:
                        own.copy_(self.blend * own + (1 - self.blend) * self.agreed[name])
            for model in self.models if buffers else ():
                for to, each in zip(model.buffers(), buffers, strict=True):
                    to.copy_(each)

    def run(self) -> "Transcription":
        counts = "examples" in self.name
        if self.name == "by examples":  # 24 examples in two steps, 20 in five
            for exchange in range(4):
                for worker, (own, steps) in enumerate(((24, 2), (20, 5))):
                    for step in range(exchange * steps, (exchange + 1) * steps):
                        self.train(worker, step, own // steps)
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


@pytest.mark.parametrize("name", DENSE)
def test_everything_sent_is_the_algorithm(name: str, found: list[dict[str, Any]]) -> None:
    expected = Transcription(name).run()
    for rank, model in enumerate(expected.models):
        here = found[rank][name]
        assert torch.tensor(here["own"]).allclose(torch.tensor(flat(model.parameters())), atol=2e-5), rank
        agreed = torch.tensor(flat(expected.agreed.values()))
        assert torch.tensor(here["agreed"]).allclose(agreed, atol=2e-5)
        assert here["agreed"] == found[0][name]["agreed"]  # to the bit
    begin = torch.tensor(flat(network().parameters()))
    assert (torch.tensor(found[0][name]["agreed"]) - begin).abs().max() > 0.01


def test_after_the_end_all_have_the_same_weights_and_buffers(found: list[dict[str, Any]]) -> None:
    for name in DENSE:
        first, second = (each[name] for each in found)
        assert first["finished"] == second["finished"] or name in BLENDED
        assert first["finished"] != first["own"] or first["own"] == first["agreed"]
    assert found[1]["by examples"]["finished"] != found[1]["by examples"]["agreed"]  # rank 0's last step
    for name in BLENDED:  # each keeps a part of its own
        assert found[0][name]["finished"] != found[1][name]["finished"]


def test_the_ledger_counts_what_was_sent(found: list[dict[str, Any]]) -> None:
    size = sum(each.numel() for each in network().parameters())
    every_third = found[0]["every third"]
    assert every_third["elements"] == 2 * 13 * size
    assert every_third["sent"] == 2 * 5 * size  # 4 rounds, and the last one
    assert 4 * every_third["sent"] < every_third["wire"] < 4.5 * every_third["sent"]
    assert found[1]["every third"]["wire"] == every_third["wire"]


@pytest.mark.parametrize("setting", CONSERVED)
def test_nothing_is_lost(setting: tuple[Any, ...], found: list[dict[str, Any]]) -> None:
    """The agreed weights have moved by the mean of what workers learned, less what they still owe."""
    ranks = [each[f"conserved {setting}"] for each in found]
    agreed, begin = (torch.tensor(ranks[0][each]) for each in ("agreed", "begin"))
    assert ranks[0]["agreed"] == ranks[1]["agreed"]
    sent = [torch.tensor(each["learned"]) - torch.tensor(each["residual"]) for each in ranks]
    assert torch.allclose(begin - agreed, (sent[0] + sent[1]) / 2, atol=1e-6)
    for rank in ranks:
        residual = torch.tensor(rank["residual"])
        assert residual.abs().sum() > 0.01
        assert 0.01 < rank["fraction"] < 0.06
        # A worker ends where its next steps begin.
        start = torch.tensor(rank["agreed"]) - (0.5 if setting[0] == "1/n" else 0.0) * residual
        assert torch.tensor(rank["own"]).allclose(start, atol=1e-6)


def test_whoever_goes_on_from_a_state_ends_with_the_same_bits(found: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(found):
        resumed = each["resumed"]
        assert resumed["going"] == [False, True]  # a fragment was on its way
        assert resumed["whole"] == resumed["again"]
        assert resumed["totals"][0] == resumed["totals"][1]
        other, version = resumed["refused"]
        assert other.startswith(f"ValueError: the state of rank {1 - rank} of 2 workers, this is rank {rank}")
        assert version == "ValueError: version 0 of a state; this program reads 2"


REFUSED = {
    "no group": "ValueError: no process group: call torch.distributed.init_process_group first",
    "every": "ValueError: every = 0: must be a whole number of steps, at least 1",
    "neither": "ValueError: every and every_examples: give one of them",
    "frozen": "ValueError: model has no parameter that requires a gradient",
    "other optimizer": "ValueError: optimizer steps no parameter of the model",
    "no optimizer": "TypeError: optimizer is of int",
    "alone": "ValueError: a group of one worker",
    "ddp": "ValueError: model is in DistributedDataParallel",
    "fragment": "ValueError: fragments[0]: '5' matches no parameter",
    "left": "ValueError: fragments: '3.bias' is in none of them, nor are 3 others",
    "twice": "ValueError: fragments: '0.bias' is in 0 and in 1",
    "many": "ValueError: fragments = 7: must be from 1 to 6",
    "delay": "ValueError: delay = 4: must be a whole number of steps, at least 0, and below every = 4",
    "blend": "ValueError: blend = 0.5: must be at least 0 and below 1, and needs a delay",
    "unsent": "ValueError: unsent = '1/2': must be from 0 to 1, or \"1/n\"",
    "exchange": "ValueError: exchange = 'gradients': must be differences or weights",
    "sparse weights": "ValueError: compressor = strom(",
    "powersgd": "ValueError: compressor = powersgd: ",
    "skip": "ValueError: compressor.nonfinite = skip: ",
    "outer": "ValueError: outer = Outer(lr=1.0, momentum=0.0, nesterov=True): ",
    "ring": "ValueError: unsent = 0.5 with a ring: ",
    "pattern": "ValueError: pattern = 'star': must be one of allgather, hierarchical, ",
    "exempt": "ValueError: exempt.names: 'head.*' matches no parameter",
    "disagree": "WorkersDisagree: ",
    "examples": "ValueError: examples = None: give them in every step, or in none",
    "negative": "ValueError: examples = -1: must be a number of at least 0",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_in_a_line(what: str, found: list[dict[str, Any]]) -> None:
    for each in found:
        said = each["no group"] if what == "no group" else each["refused"][what]
        assert said.startswith(REFUSED[what])
        assert "\n" not in said


def test_a_lost_worker_is_named(found: list[dict[str, Any]]) -> None:
    assert "worker 1" in found[0]["alone"]
