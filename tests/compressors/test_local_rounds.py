"""Local rounds of simulated workers."""

import pytest
import torch

from taugrad.compressors import Step
from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.local_rounds import Agreed, LocalRounds, on_host
from taugrad.compressors.exchange.lockstep import run, run_lockstep
from taugrad.compressors.exchange.worker_group import WorkerGroup
from taugrad.compressors.local_fields import LocalFields
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops import ops_for


def test_a_copy_on_the_host_is_not_on_torchs_default_device():
    weights = torch.arange(6.0).view(2, 3)
    with torch.device("meta"):
        assert on_host(weights).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("examples", [0.0, 1.0])
def test_a_last_round_of_few_examples_enlarges_no_residual_and_loses_no_move(examples):
    fields, method = LocalFields(unsent=0.5), read_config("strom(density(0.1, every=1))")
    parameters, drawing = [torch.zeros(100) for _ in range(2)], torch.Generator().manual_seed(0)
    agreed = Agreed.begin([torch.zeros(100)], {}, fields)
    workers = [
        LocalRounds(
            WorkerGroup(carrier), Worker(ops_for(torch.device("cpu")), rank, 2), ["w"], [range(1)],
            (method, None), fields, 256, agreed, [parameters[rank]],
        )
        for rank, carrier in enumerate(in_memory(2))
    ]  # fmt: skip
    for parameter in parameters:
        parameter.sub_(torch.randn(100, generator=drawing))
    run_lockstep([worker.advance(Step(), 256, 256.0) for worker in workers])
    before, residuals = agreed.weights[0].clone(), [w.fragments[0].pattern.unsent()[0] for w in workers]
    unsent = sum(residuals) / 2
    if examples:
        for worker, parameter in zip(workers, parameters, strict=True):
            parameter.sub_(torch.ones(100))
            run(worker.advance(Step(), examples, examples))
        unsent = unsent + 1
    run_lockstep([worker.finish(Step(), weighted=True, every_fragment=True) for worker in workers])
    kept = sum(worker.fragments[0].pattern.unsent()[0] for worker in workers) / 2
    torch.testing.assert_close(before - agreed.weights[0] + kept, unsent)


def test_nothing_is_sent_that_was_not_learned_where_workers_weigh_otherwise_each_time():
    fields, method = LocalFields(unsent=0.5), read_config("topk(0.1)")
    parameters, drawing = [torch.zeros(100) for _ in range(2)], torch.Generator().manual_seed(0)
    agreed = Agreed.begin([torch.zeros(100)], {}, fields)
    workers = [
        LocalRounds(
            WorkerGroup(carrier), Worker(ops_for(torch.device("cpu")), rank, 2), ["w"], [range(1)],
            (method, None), fields, 1, agreed, [parameters[rank]],
        )
        for rank, carrier in enumerate(in_memory(2))
    ]  # fmt: skip
    learned = [torch.randn(100, generator=drawing) for _ in range(2)]
    for parameter, update in zip(parameters, learned, strict=True):
        parameter.sub_(update)
    sent = torch.zeros(100)  # in examples times weights
    for examples in ((10.0, 30.0), (30.0, 10.0), (5.0, 45.0)):  # they learn in the first round alone
        before = agreed.weights[0].clone()
        run_lockstep([worker.advance(Step(), 1, of) for worker, of in zip(workers, examples, strict=True)])
        sent += (before - agreed.weights[0]) * sum(examples)
    unit = 20.0  # the mean number of examples in the first round
    kept = sum(unit * worker.fragments[0].pattern.unsent()[0] for worker in workers)
    torch.testing.assert_close(sent + kept, 10 * learned[0] + 30 * learned[1])
