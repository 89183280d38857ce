"""Local steps with members, in threads: the same bits as in a group that is fixed, and what a member says."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import torch
from member_process import bits, make, train

from taugrad.compressors import CorruptMessage, LocalSteps, MemberRefused, Members, Outer, Step
from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.local_rounds import Agreed, LocalRounds, fragments_of
from taugrad.compressors.exchange.lockstep import run_lockstep
from taugrad.compressors.exchange.members import rounds
from taugrad.compressors.exchange.members.fragment import MemberFragment
from taugrad.compressors.exchange.members.member import COORDINATOR, TakeOver
from taugrad.compressors.exchange.members.moments import has_moments, joined, load_moments, moments_of, split
from taugrad.compressors.exchange.members.resuming import fitting
from taugrad.compressors.exchange.members.server import CoordinatorServer, TableFile
from taugrad.compressors.exchange.patterns.base import ExchangeRecord
from taugrad.compressors.exchange.tensors import to_bytes
from taugrad.compressors.exchange.worker_group import WorkerGroup
from taugrad.compressors.local_fields import LocalFields
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops import ops_for

KEY = b"0123456789abcdef0123456789abcdef"
STEPS = 12


@pytest.fixture
def server(tmp_path):
    server = CoordinatorServer("0", KEY, TableFile(tmp_path / "run.db"))
    server.start()
    yield server
    server.close()


@pytest.fixture
def coordinator(server):
    return server.address


def members(coordinator: str, **options) -> Members:
    return Members(coordinator, key=KEY, **options)


class Trainee:
    """A small model, its optimizer and its member."""

    def __init__(self, who: Members, seed: int = 1, joins: bool = True, **options: Any) -> None:
        self.model, self.optimizer, self.local = make(who, **options)
        self.drawing = torch.Generator().manual_seed(seed)
        if joins:
            self.local.join()

    def learn(self) -> None:
        train(self.model, self.optimizer, self.drawing)

    def step(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.learn()
            self.local.step()

    def go_on_from(self, state: dict[str, Any]) -> None:
        self.local.load_state_dict(state)
        self.local.join()


def fragment_of(parameter: torch.Tensor, method: str, fields: LocalFields, unit: float | None = None):
    """Of a member with one parameter; the method is a line."""
    agreed = Agreed.begin([parameter.detach().clone().reshape(-1)], {}, fields)
    worker = Worker(ops_for(torch.device("cpu")), 0, 4)
    return MemberFragment(read_config(method), worker, ["w"], [0], agreed, [parameter], fields, unit)


def fixed(model, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The agreed weights after the same steps of two workers that are fixed."""
    models, steps = [deepcopy(model) for _ in range(2)], []
    late = {name: value for name, value in options.items() if name != "fragments"}
    fields = LocalFields(unsent="1/n", outer=Outer(lr=0.7, momentum=0.9, nesterov=True), **late)
    names = [name for name, _ in reversed(list(model.named_parameters()))]
    weights = [model.get_parameter(name).detach().clone().reshape(-1) for name in names]
    agreed = Agreed.begin(weights, {}, fields)
    method = read_config("strom(density(0.2, every=1)) | golomb_rice")
    parts = fragments_of([tensor.numel() for tensor in weights], options.get("fragments", 1))
    workers = [
        LocalRounds(
            WorkerGroup(carrier), Worker(ops_for(torch.device("cpu")), rank, 2), names, parts,
            (method, None), fields, 3, agreed, [models[rank].get_parameter(name) for name in names],
        )
        for rank, carrier in enumerate(in_memory(2))
    ]  # fmt: skip
    optimizers = [torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9) for own in models]
    drawings = [torch.Generator().manual_seed(rank) for rank in range(2)]
    for _ in range(STEPS):
        for own, optimizer, drawing in zip(models, optimizers, drawings, strict=True):
            train(own, optimizer, drawing)
        steps = [worker.advance(Step()) for worker in workers]
        run_lockstep(steps)
    run_lockstep([worker.finish(Step()) for worker in workers])
    return dict(zip(names, agreed.weights, strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"fragments": 3}, {"delay_steps": 2}, {"delay_steps": 1, "blend": 0.3}], ids=str
)
def test_members_that_stay_have_the_same_bits_as_a_fixed_group(coordinator, options):
    # With a smaller quorum, a busy machine's round closes without the slower one.
    who, first_is_in = members(coordinator, min_members=2, quorum=1.0), Event()
    trained = [Trainee(who, seed=rank, joins=False, buffers=False, **options) for rank in range(2)]
    expected = fixed(trained[0].model, options)  # the first one's weights are everybody's

    def work(rank: int) -> None:
        if rank:
            assert first_is_in.wait(60)
        trained[rank].local.join()
        first_is_in.set()
        trained[rank].step(STEPS)
        trained[rank].local.finish()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    fragments = options.get("fragments", 1)
    rounds = STEPS // 3 * fragments + fragments - 1
    for one in trained:
        with one.local.agreed():
            for name, weights in expected.items():
                assert torch.equal(one.model.get_parameter(name).reshape(-1), weights), name
        assert (one.local.membership.rounds, one.local.membership.missed) == (rounds, 0)
        assert 0 < one.local.totals.wire_bytes < one.local.totals.elements
    assert trained[0].local.totals.received_bytes == trained[1].local.totals.wire_bytes


def test_a_round_of_a_fragment_that_still_trains_moves_its_weights_and_keeps_its_steps():
    model = torch.nn.Linear(20, 10, bias=False, dtype=torch.float64)
    line, fields = "strom(density(0.2, every=1))", LocalFields(unsent=0.5)
    fragment = fragment_of(model.weight, line, fields)
    other = fragment_of(torch.zeros(10, 20, dtype=torch.float64), line, fields)
    drawing = torch.Generator().manual_seed(1)
    fragment.keep(torch.randn(200, generator=drawing), 0.0)
    fragment.offer(0, ExchangeRecord(Traffic(4)))  # it has a residual now
    fragment.load_base()
    fragment.trains = True
    with torch.no_grad():
        model.weight += torch.randn(10, 20, generator=drawing)
    other.keep(torch.randn(200, generator=drawing), 0.0)
    message, _ = other.offer(1, ExchangeRecord(Traffic(4)))
    mean = other.pattern.assemble({1: message.copy()})
    weights, unsent = model.weight.detach().clone(), fragment.unsent()
    fragment.merge({1: message}, 0.25)
    torch.testing.assert_close(model.weight, weights - 0.25 * mean.view(10, 20))
    torch.testing.assert_close(fragment.unsent(), unsent)


def test_members_round_by_random_numbers_of_their_own():
    messages = []
    for slot in (0, 0, 1):
        fragment = fragment_of(torch.zeros(200), "terngrad", LocalFields())
        fragment.keep(torch.randn(200, generator=torch.Generator().manual_seed(1)), 0.0)
        messages.append(fragment.offer(slot, ExchangeRecord(Traffic(4)))[0].tobytes())
    assert messages[0] == messages[1] != messages[2]


def test_members_weigh_by_their_examples(coordinator):
    batches, ended, ready, began = (8, 16), {}, Event(), {}

    def work(rank: int) -> None:
        model = torch.nn.Linear(4, 3, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        who = members(coordinator, min_members=2)
        local = LocalSteps(model, optimizer, every_examples=24, members=who)
        if rank:
            assert ready.wait(60)
        local.join()
        ready.set()
        began[rank] = model.weight.clone()
        drawing = torch.Generator().manual_seed(rank)
        for _ in range(-(-24 // batches[rank])):
            inputs = torch.randn(batches[rank], 4, generator=drawing, dtype=torch.float64)
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ended[rank] = model.weight.clone()
            local.step(examples=batches[rank])
        assert local.membership.rounds == 1
        with local.agreed():
            torch.testing.assert_close(
                model.weight, (24 * ended[0] + 32 * ended[1]) / 56, rtol=1e-6, atol=1e-7
            )
        local.leave()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert torch.equal(began[0], began[1])


@pytest.mark.parametrize("examples", [0, 1])
def test_a_last_round_of_few_examples_enlarges_no_residual(coordinator, examples):
    model = torch.nn.Linear(20, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = LocalSteps(
        model, optimizer, every_examples=256, method="strom(density(0.1, every=1))",
        members=members(coordinator),
    )  # fmt: skip
    local.join()
    train(torch.nn.Sequential(model, torch.nn.Linear(30, 5)), optimizer, torch.Generator().manual_seed(1))
    local.step(examples=256)
    before, (fragment,) = torch.cat(local._rounds.agreed.weights), local._rounds.fragments
    residual = torch.cat([tensor.clone() for tensor in fragment.pattern.unsent()])
    assert residual.any()
    local.step(examples=examples)  # without a move
    local.finish()
    moved = before - torch.cat(local._rounds.agreed.weights)
    torch.testing.assert_close(moved + torch.cat(fragment.pattern.unsent()), residual)


def test_one_member_alone_goes_on_from_its_checkpoint(coordinator):
    one = Trainee(members(coordinator))
    one.step(STEPS + 1)
    state, weights = deepcopy(one.local.state_dict()), one.model[0].weight.clone()
    assert not one.local.leave()  # there is nobody to give anything to
    with pytest.raises(MemberRefused, match="has left"):
        one.local.step()
    one = Trainee(members(coordinator), joins=False)
    local = one.local
    local.load_state_dict(state)
    assert torch.equal(one.model[0].weight, weights)
    local.join()
    assert (local.membership.joins, local.membership.dropped) == (2, 0)
    one.step(3)
    assert local.membership.round == STEPS // 3 + 1
    before, steps = bits(local), local._rounds.steps
    with pytest.raises(ValueError, match="load its state before the first step"):
        local.load_state_dict(state)
    assert (bits(local), local._rounds.steps) == (before, steps)
    local.finish()


def test_a_shard_whose_member_is_lost_goes_to_the_next_one(coordinator):
    first, second, third, fourth = (Trainee(members(coordinator), joins=False) for _ in range(4))
    assert first.local.lease() == 0
    first.step(3)
    saved = deepcopy(first.local.state_dict())
    assert first.local.lease() == 1
    assert first.local.lease() == 2
    first.step()
    first.local._rounds._session.close()  # without a word
    second.local.load_state_dict(saved)
    assert [second.local.lease() for _ in range(3)] == [1, 2, 3]
    assert second.local.membership.dropped == 0
    second.step(3)
    assert second.local.lease() == 4
    state = deepcopy(second.local.state_dict())
    second.local.leave()
    third.local.load_state_dict(state)  # it has the shard, and keeps it
    assert third.local.lease() == 5
    third.step(3)
    fourth.local.load_state_dict(third.local.state_dict())
    third.local.finish()
    assert fourth.local.lease() == 6
    membership = fourth.local.membership
    assert (membership.slot, membership.incarnation, membership.dropped) == (0, 4, 0)
    fourth.local.leave()


def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = optimizer.state_dict()["state"]
    return [value.clone() for _, state in sorted(states.items()) for _, value in sorted(state.items())]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_new_member_takes_the_moments_of_another_and_keeps_its_own_later(coordinator, kind):
    def make_with_moments():
        model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(model.parameters(), lr=0.01, **options)
        who = members(coordinator, moments=True)
        return model, optimizer, LocalSteps(model, optimizer, every=3, members=who)

    drawing, ends = torch.Generator().manual_seed(1), Event()

    def learn(model, optimizer, local, steps: int) -> None:
        for _ in range(steps):
            train(model, optimizer, drawing)
            local.step()

    _, optimizer, donor = first = make_with_moments()
    donor.join()
    learn(*first, STEPS + 1)
    given = moments(optimizer)
    assert len(given) == {torch.optim.AdamW: 12, torch.optim.SGD: 4, torch.optim.Adagrad: 8}[kind]

    def serve() -> None:  # without training: its moments stay
        while not ends.wait(0.01):
            donor.step()

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve)
        try:
            _, optimizer, joiner = second = make_with_moments()
            joiner.join()
            assert joiner.membership.round >= STEPS // 3
            assert all(map(torch.equal, moments(optimizer), given))
            learn(*second, 3)
            own, saved, state = moments(optimizer), optimizer.state_dict(), joiner.state_dict()
            assert not torch.equal(own[-1], given[-1])
            joiner.leave()
            state["rounds"]["hello"]["state"] = None  # it takes the state anew
            _, optimizer, joiner = make_with_moments()
            optimizer.load_state_dict(saved)
            joiner.load_state_dict(state)
            joiner.join()
            assert joiner.membership.restores == 2
            assert all(map(torch.equal, moments(optimizer), own))
            joiner.leave()
        finally:
            ends.set()
        serving.result()
    donor.leave()


def test_a_model_of_many_parameters_has_members(coordinator):
    def join(layers: int, fragments: int) -> LocalSteps:
        model = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(layers)))
        optimizer = torch.optim.SGD(model.parameters())
        who = members(coordinator)
        local = LocalSteps(model, optimizer, every=3, fragments=fragments, members=who)
        local.join()
        return local

    local = join(200, 1)
    with pytest.raises(MemberRefused, match=r"fragments = \[\[0, 1, .* of digest"):
        join(200, 3)
    local.leave()


def test_moments_that_do_not_fit_are_refused():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    data = moments_of([optimizer])
    for wrong in (data[:-1], data[:5], np.concatenate([data, data]), np.zeros(8, np.uint8)):
        with pytest.raises(CorruptMessage, match="the member that gave its state sent"):
            load_moments(wrong, [optimizer])
    with pytest.raises(CorruptMessage, match="do not fit"):
        load_moments(data, [])
    lbfgs = torch.optim.LBFGS(model.parameters())
    lbfgs.step(lambda: model(torch.ones(3)).square().sum().backward() or 1.0)
    with pytest.raises(TypeError, match="LBFGS keeps"):
        moments_of([lbfgs])


def test_only_an_optimizer_that_has_taken_steps_has_moments():
    model = torch.nn.Linear(3, 2)
    for kind, options in ((torch.optim.Adagrad, {}), (torch.optim.SGD, {"momentum": 0.9})):
        optimizer = kind(model.parameters(), lr=0.1, **options)
        assert not has_moments([optimizer])
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        assert has_moments([optimizer])


def test_moments_keep_their_dtype():
    models = [torch.nn.Linear(3, 2, dtype=torch.bfloat16) for _ in range(2)]
    given, taking = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models)
    expected = torch.full((2, 3), 1 + 2**-20)
    given.state[models[0].weight]["momentum_buffer"] = expected
    load_moments(moments_of([given]), [taking])
    assert torch.equal(taking.state[models[1].weight]["momentum_buffer"], expected)


def test_moments_that_cannot_be_sent_are_refused_before_anybody_needs_them(coordinator):
    model = torch.nn.Linear(3, 2)
    lbfgs = torch.optim.LBFGS(model.parameters())
    local = LocalSteps(model, lbfgs, every=1, members=members(coordinator, moments=True))
    local.join()
    lbfgs.step(lambda: model(torch.ones(3)).square().sum().backward() or 1.0)
    with pytest.raises(TypeError, match="LBFGS keeps"):
        local.step()
    local.leave()


def test_a_member_leaves_while_a_round_is_on_its_way(coordinator):
    one = Trainee(members(coordinator), delay_steps=2)
    one.step(4)  # it has handed in after three, and would merge after five
    local = one.local
    assert local.membership.round == 0
    state = local.state_dict()  # merges it
    assert state["shared"]["fragments"][0]["done"] == 1
    local.leave()
    state = deepcopy(local.state_dict())
    assert local.membership.round == 1
    assert state["rounds"]["fragments"][0]["pending"].any()  # the fourth step
    again = Trainee(members(coordinator), joins=False, delay_steps=2)
    again.go_on_from(state)
    assert (again.local.membership.dropped, again.local.membership.round) == (0, 1)
    again.local.finish()
    assert again.local.membership.round == 2


def test_an_offer_that_is_in_no_round_when_its_member_leaves_is_in_its_state(coordinator):
    who = members(coordinator, min_members=2, leave_within=0.5)
    one = Trainee(who, delay_steps=1)
    begun = deepcopy(one.model)
    one.step(3)
    moves = [old - new for old, new in zip(begun.parameters(), one.model.parameters(), strict=True)]
    assert not one.local.leave()
    state = deepcopy(one.local.state_dict())
    (saved,) = state["rounds"]["fragments"]
    residuals = saved["unsent"]["ranks"]["0"]["residuals"].values()
    assert saved["pending"].any()
    torch.testing.assert_close(
        saved["pending"].sum() + sum(map(torch.sum, residuals)), sum(move.sum() for move in moves)
    )
    again = Trainee(who, joins=False, delay_steps=1)
    again.go_on_from(state)
    assert again.local.membership.dropped == 0
    assert again.local._rounds.fragments[0].pending.any()
    again.local.leave()


def two_members(coordinator: str, **options) -> tuple[LocalSteps, LocalSteps]:
    """Two that have joined; the first has just been in a round."""
    first, second = (make(members(coordinator, round_within=0.3), **options)[2] for _ in range(2))
    first.join()
    joins = Thread(target=second.join, daemon=True)
    joins.start()
    while not first.step() or joins.is_alive():
        pass
    return first, second


def test_a_member_ends_right_after_an_exchange_though_others_have_gone_on(coordinator):
    first, second = two_members(coordinator)
    for _ in range(3):
        second.step()
    ends = Thread(target=first.finish, daemon=True)
    ends.start()
    ends.join(10)
    assert not ends.is_alive()
    assert first.membership.round == second.membership.round
    second.leave()


def test_a_member_of_every_third_round_sends_all_fragments(coordinator):
    first, second = two_members(coordinator, fragments=3)
    for _ in range(3):
        for _ in range(2):
            first.step()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(LocalSteps.step, (first, second)))
    sent = [fragment["sent_step"] for fragment in second.state_dict()["shared"]["fragments"]]
    assert sorted(sent) == [1, 2, 3]
    first.leave()
    second.leave()


def test_a_member_whose_round_was_applied_in_part_has_no_state(coordinator, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    one = Trainee(members(coordinator))
    one.step(2)
    one.learn()
    local = one.local
    monkeypatch.setattr(local._rounds.fragments[0], "apply", stop)
    with pytest.raises(KeyboardInterrupt):
        local.step()
    for state in (local.state_dict(), local.leave() or local.state_dict()):
        assert state["rounds"]["hello"]["state"] is None


def test_the_state_of_a_member_that_has_just_joined_again_has_nothing_that_counts_no_longer(coordinator):
    one = Trainee(members(coordinator))
    one.step(2)
    local, session = one.local, one.local._rounds._session
    with session.lock:
        view = session.member.view
        peers = tuple(peer.model_copy(update={"incarnation": 99}) for peer in view.peers)
        update = {"incarnation": 99, "version": view.version + 1, "peers": peers, "residual_counts": False}
        session.member.receive(COORDINATOR, view.model_copy(update=update), monotonic())
        state = deepcopy(local.state_dict())
    assert state["rounds"]["hello"]["previous"] == 99
    assert not state["rounds"]["fragments"][0]["pending"].any()
    assert local.membership.dropped == 1
    session.close()


def test_steps_after_an_offer_keep_their_examples_when_the_member_joins_again():
    fragment = fragment_of(torch.zeros(4), "none", LocalFields(delay_steps=2), 8.0)
    fragment.trains, fragment.part.examples = True, 8.0
    fragment.offer(0, ExchangeRecord(Traffic(4)))
    fragment.begin_anew(1)
    fragment.part.examples = 5.0  # its model trains on
    fragment.set_aside()
    fragment.forget()
    assert (fragment.part.examples, fragment.unsent_examples) == (5.0, 0.0)


def test_what_a_member_has_forgotten_has_no_examples_either():
    fragment = fragment_of(torch.zeros(4), "none", LocalFields(), 8.0)
    fragment.trains, fragment.part.examples = True, 5.0
    fragment.forget()
    fragment.trains = True
    assert fragment.unsent_examples == 0.0


def test_what_is_taken_over_too_late_to_be_given_on_counts_as_lost(coordinator, monkeypatch):
    one = Trainee(members(coordinator))
    one.step()
    local, rounds, member = one.local, one.local._rounds, one.local._rounds._session.member
    update = torch.full_like(rounds.fragments[0].pending, 2.0)

    def give(data: Any) -> None:
        late = joined(to_bytes([update.bfloat16()]), np.array([(8.0, 0)], "<f8, <i8").view(np.uint8))
        steps, member.is_given = iter([TakeOver(late)]), True
        monkeypatch.setattr(rounds._session, "next", lambda: next(steps, None))

    monkeypatch.setattr(member, "give", give)
    assert local.leave()
    assert (local.membership.taken_over, local.membership.dropped) == (1, 1)
    assert local.membership.dropped_squares == 4.0 * update.numel()


def test_a_member_with_a_shard_gives_on_what_it_took_over(coordinator, monkeypatch):
    one = Trainee(members(coordinator))
    one.local.lease()
    one.step()
    local, rounds, member, given = one.local, one.local._rounds, one.local._rounds._session.member, []
    update = torch.full_like(rounds.fragments[0].pending, 2.0).bfloat16()
    rounds._do(TakeOver(joined(to_bytes([update]), np.array([(8.0, 0)], "<f8, <i8").view(np.uint8))))

    def give(data: Any) -> None:
        given.append(split(data, "it")[0])
        member.is_given = True

    monkeypatch.setattr(member, "give", give)
    assert local.leave()
    assert np.array_equal(given[0], to_bytes([update]))  # the shard goes to others as a whole


def test_a_buffer_that_changes_its_shape_is_named_and_reaches_nobody(coordinator):
    model, optimizer, local = make(members(coordinator))
    model.register_buffer("cache", torch.zeros(1))
    local = LocalSteps(model, optimizer, every=1, members=members(coordinator))
    local.join()
    model.cache = torch.zeros(4)
    with pytest.raises(ValueError, match=r"buffer 'cache' is float32 \[4\] now, and was float32 \[1\]"):
        local.step()
    assert local.state_dict()["rounds"]["hello"]["state"] is not None
    local.leave()


def test_a_state_that_is_saved_before_its_member_joins_has_the_worker_of_a_fixed_group():
    state = make(members("127.0.0.1:1"))[2].state_dict()
    state["rounds"]["hello"]["origin"] = "rank 0 of 2, round 3"
    local = make(members("127.0.0.1:1"))[2]
    local.load_state_dict(state)
    assert local.state_dict()["rounds"]["hello"] == state["rounds"]["hello"]


def test_a_state_of_other_fragments_changes_nothing():
    state = make(members("127.0.0.1:1"), fragments=3)[2].state_dict()
    state["shared"]["steps"] = 7
    local = make(members("127.0.0.1:1"))[2]
    with pytest.raises(ValueError, match="the state of 3 fragments, this run has 1"):
        local.load_state_dict(state)
    assert local._rounds.steps == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_fixed_group_takes_the_states_of_members_in_any_order(coordinator, order):
    states, local = [], make(members(coordinator))[2]
    local.join()
    for previous in (7, 9):
        state = deepcopy(local.state_dict())
        state["rounds"]["hello"]["previous"] = previous
        states.append({**state, "totals": previous})
    local.leave()
    fitted = fitting([states[place] for place in order], None, reshard=True)
    assert [(state["rank"], state["totals"]) for state in fitted] == [(0, 7), (1, 9)]


def test_a_state_that_is_saved_when_no_coordinator_answers_has_the_offer_and_later_steps(coordinator):
    one = Trainee(members(coordinator, min_members=2), delay_steps=2)
    one.step(4)
    local = one.local
    fragment = local._rounds.fragments[0]
    sent, at_sending = local._rounds._offer[1], fragment.part.at_sending
    after = torch.cat([old - new for old, new in zip(at_sending, fragment._weights(), strict=True)])
    local._rounds._session.close()
    for _ in range(2):
        state = local.state_dict()["rounds"]
        pending = state["fragments"][0]["pending"] - fragment.pattern.assemble({0: sent})
        torch.testing.assert_close(pending, after)
        assert state["hello"]["offered"] == 0


@pytest.mark.parametrize("delay_steps", [0, 2])
def test_a_member_goes_on_after_an_outage_in_which_it_was_told_that_nobody_answers(
    coordinator, monkeypatch, delay_steps
):
    def refuse(_: float) -> None:
        raise MemberRefused("the coordinator has not answered")

    one = Trainee(members(coordinator), delay_steps=delay_steps)
    one.step(2)
    one.learn()
    local = one.local
    with monkeypatch.context() as outage:
        outage.setattr(local._rounds._session, "next", lambda: None)
        outage.setattr(local._rounds._session, "wait", refuse)
        if delay_steps:
            local.step()
            local.state_dict()
        else:
            with pytest.raises(MemberRefused):
                local.step()
            with pytest.raises(MemberRefused):
                local.join()
    local.join()
    one.step(6)
    local.finish()
    assert (local.membership.rounds, local.membership.missed, local.membership.dropped) == (3, 0, 0)


def test_the_last_one_of_too_few_is_told_and_keeps_its_last_update(coordinator):
    one = Trainee(members(coordinator, min_members=2, silent_after=2, wait=3, leave_within=0.1))
    one.step()
    local = one.local
    with pytest.raises(MemberRefused, match="waited for 3 s: 1 member, a round needs 2"):
        local.finish()
    assert not local.leave()
    assert local.state_dict()["rounds"]["fragments"][0]["pending"].any()


def test_a_member_that_is_thrown_out_as_it_ends_hands_in_again(server):
    trained = [Trainee(members(server.address, min_members=2), joins=False) for _ in range(2)]
    first, second = (one.local for one in trained)
    first.join()
    trained[0].step()
    with ThreadPoolExecutor(1) as pool:
        ends = pool.submit(first.finish)
        session = first._rounds._session
        while not session.member.waits:
            sleep(0.01)
        server._coordinator.close(session._process, monotonic())
        while first.membership.joins < 2:
            sleep(0.01)
        second.join()
        trained[1].step()
        second.finish()
        ends.result()
    for local in (first, second):
        assert (local.membership.missed, local.membership.dropped) == (0, 0)
        assert not local.state_dict()["rounds"]["fragments"][0]["pending"].any()


def test_a_machine_whose_way_to_the_coordinator_comes_up_late_listens_where_others_reach_it(
    coordinator, monkeypatch, caplog
):
    monkeypatch.setattr(rounds, "QUIET_S", 0)
    found = iter([None, None, "127.0.0.1"])
    monkeypatch.setattr(rounds, "source_address", lambda host: next(found))
    make(members(coordinator))[2].join()
    assert next(found, "all") == "all"
    assert caplog.text.count("or no way to it: waiting for one") == 1
    monkeypatch.setattr(rounds, "source_address", lambda host: None)
    with pytest.raises(MemberRefused, match=r"no address for 127\.0\.0\.1, the coordinator's host"):
        make(members(coordinator, silent_after=0.2, wait=0.1))[2].join()


def test_weights_that_are_not_finite_reach_nobody(coordinator):
    one = Trainee(members(coordinator))
    one.step(2)
    with torch.no_grad():
        one.model[0].weight[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"'0\.weight' holds NaN"):
        one.local.step()
    one.local.leave()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "ring"}, "pattern = ring with members: must be allgather"),
        ({"exchange": "weights", "method": "none"}, "exchange = weights with members"),
        ({"fragments": 2, "every": 3}, "every = 3 with members: must be a multiple of fragments = 2"),
        ({"delay_steps": 2, "fragments": 2}, "delay_steps = 2 with members: must be below every / fragments"),
        ({"key": KEY}, "key with members: leave it out"),
    ],
)
def test_what_members_cannot_have_is_refused(options, message):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=message):
        LocalSteps(
            model,
            torch.optim.SGD(model.parameters()),
            members=members("127.0.0.1:1"),
            **{"every": 4} | options,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quorum": 2}, "quorum = 2"),
        ({"max_members": 0}, "max_members = 0"),
        ({"min_members": 9}, "min_members = 9 with max_members = 8"),
        ({"wait": 4.0}, "wait = 4.0 with silent_after = 10.0: must be half or more"),
        ({"coordinator": "nowhere"}, "must be HOST:PORT"),
        ({"key": b"short"}, "a key of 5 bytes"),
    ],
)
def test_members_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Members(**{"coordinator": "127.0.0.1:1", "key": KEY} | options)


def test_a_key_is_not_shown():
    assert "0123456789" not in repr(members("127.0.0.1:1"))


def test_examples_are_refused_and_members_are_needed_to_leave(coordinator):
    local = make(members(coordinator))[2]
    with pytest.raises(ValueError, match="examples = 8 with members: they weigh by examples with"):
        local.step(examples=8)


def test_what_is_given_to_a_member_that_just_leaves_is_in_its_state(coordinator, monkeypatch):
    """The other one has its answer; that it was asked reaches the member only after it began to leave."""
    who, is_told = members(coordinator), Event()
    giver, heir = Trainee(who), Trainee(who, seed=2, joins=False)
    with ThreadPoolExecutor(1) as pool:
        joins = pool.submit(heir.local.join)
        while not joins.done():
            giver.local.state_dict()  # gives the agreed state in it
            sleep(0.01)
    for one in (giver, heir):
        one.learn()
    moved = giver.local._rounds.fragments[0].moves()
    ending, member = giver.local._rounds._end, heir.local._rounds._session.member
    monkeypatch.setattr(giver.local._rounds, "_end", lambda: is_told.wait(60) and ending())
    follow = member._follow

    def late(view: Any, now: float) -> None:
        leaves = any(peer.leaving and peer.incarnation == view.incarnation for peer in view.peers)
        if is_told.is_set():
            follow(view, now)
        elif not leaves:
            follow(view.model_copy(update={"adopted": {}}), now)

    monkeypatch.setattr(member, "_follow", late)
    with ThreadPoolExecutor(2) as pool:
        gives = pool.submit(giver.local.leave)
        deadline = monotonic() + 60
        while not (giver.local.membership.given and member.holds_residual and not member.heirs):
            assert monotonic() < deadline
            sleep(0.01)
        leaves = pool.submit(heir.local.leave)
        while not (leaves.done() or member._leaving):
            sleep(0.01)
        sleep(0.3)
        is_told.set()
        assert (gives.result(60), leaves.result(60)) == (True, False)
    assert heir.local.membership.taken_over == 1
    pending = heir.local.state_dict()["rounds"]["fragments"][0]["pending"]
    own = heir.local._rounds.fragments[0].moves()
    torch.testing.assert_close(pending - own, moved, rtol=0.01, atol=1e-3)
