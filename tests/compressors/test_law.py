"""Laws: what they see of gradients, and the tau or floor that follows, against the definitions."""

import json
import math

import numpy as np
import pytest
import torch
from cases import in_turn
from hypothesis import given
from hypothesis import strategies as st
from workbench import Worker, part_of, policy_of

from taugrad.compressors.tau.by_law import LawMemory, LayerStatistics, features

SIZES = (300, 41, 128)


def layers_of(seed: int, scale: float = 0.01) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scales = [scale, 3 * scale, 0.2 * scale]
    return [scale * torch.randn(n, generator=generator) for n, scale in zip(SIZES, scales, strict=True)]


def seen(layer: torch.Tensor) -> LayerStatistics:
    magnitudes = np.abs(layer.double().numpy())
    p99, p999 = np.quantile(magnitudes, [0.99, 0.999], method="inverted_cdf")
    return LayerStatistics(magnitudes.size, math.sqrt(np.mean(magnitudes**2)), p99, p999)


def law_by_hand(layers: list[torch.Tensor], constant: float, rms: float, p99: float, layer: float) -> float:
    """The law of all elements, written out: means over elements are means over layers, repeated."""
    looked = [seen(layer) for layer in layers]
    everything = np.concatenate([layer.double().numpy() for layer in layers])
    over = np.repeat([layer.p99 / layer.rms for layer in looked], [layer.elements for layer in looked])
    sizes = np.repeat([layer.elements for layer in looked], [layer.elements for layer in looked])
    return float(
        constant
        + rms * np.log(np.sqrt(np.mean(everything**2)))
        + p99 * np.mean(np.log(over))
        + layer * np.mean(np.log(sizes))
    )


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_only_one_feature_follows_the_scale(seed: int, factor: float) -> None:
    before = features([seen(layer) for layer in layers_of(seed)])
    after = features([seen(layer * factor) for layer in layers_of(seed)])
    assert before is not None
    assert after is not None
    assert after.rms - before.rms == pytest.approx(math.log(factor), abs=1e-5)
    assert after[1:] == pytest.approx(before[1:], abs=1e-5)


def test_layers_without_a_gradient_do_not_count() -> None:
    some = [seen(layer) for layer in layers_of(0)]
    assert features([*some, LayerStatistics(10**6, 0.0, 0.0, 0.0)]) == features(some)
    assert features([LayerStatistics(5, 0.0, 0.0, 0.0)]) is None
    assert features([]) is None


def test_a_layer_that_is_mostly_zero_has_a_finite_feature() -> None:
    result = features([LayerStatistics(1000, 1.0, 0.0, 0.0)])
    assert result is not None
    assert result.p99 == pytest.approx(math.log(1e-3))


@in_turn("order", [(0, 1, 2), (2, 0, 1)])
def test_all_layers_share_a_tau_from_the_second_iteration_on(order: tuple[int, ...]) -> None:
    law = {"constant": 0.3, "rms": 0.9, "p99": 0.5, "layer": -0.2}
    policy = policy_of("law(0.3, rms=0.9, p99=0.5, layer=-0.2)")
    memories: dict[str, LawMemory] = {}
    taus = []
    for iteration in range(4):
        layers = layers_of(iteration, scale=10.0**-iteration)
        results = {}
        for i in order:
            part = part_of(layers[i], name=f"p{i}")
            memory = memories.setdefault(part.name, LawMemory())
            policy.decide([memory], iteration, memories)
            (results[i],) = policy.taus([part], iteration, [memory])
        taus.append(results)
    first = layers_of(0, scale=1.0)
    for i, layer in enumerate(first):
        assert taus[0][i] == pytest.approx(math.exp(law_by_hand([layer], **law)), rel=1e-5)
    together = math.exp(law_by_hand(first, **law))
    assert taus[1:] == [dict.fromkeys(range(3), pytest.approx(together, rel=1e-5))] * 3
    for memory in memories.values():  # checkpoints hold plain numbers
        assert LawMemory.from_plain(json.loads(json.dumps(memory.plain()))) == memory


def test_a_layer_that_comes_later_takes_the_tau_of_all_seen_by_then() -> None:
    policy = policy_of("law(0)")
    memories: dict[str, LawMemory] = {}
    early, late, _ = layers_of(1)
    taus = []
    for iteration in range(4):
        results = []
        for name, gradient in (("early", early), ("late", late if iteration else torch.zeros_like(late))):
            memory = memories.setdefault(name, LawMemory())
            policy.decide([memory], iteration, memories)
            results += policy.taus([part_of(gradient, name=name)], iteration, [memory])
        taus.append(results)
    alone = math.sqrt(float(early.double().square().mean()))
    both = math.sqrt(float(torch.cat([early, late]).double().square().mean()))
    assert taus[0] == [pytest.approx(alone, rel=1e-5), 1.0]  # nothing to send, by any tau
    assert taus[2] == taus[3] == [pytest.approx(alone, rel=1e-5), pytest.approx(both, rel=1e-5)]


def sent_by(line: str, iterations: int = 3) -> list[list[bytes]]:
    """One worker's payloads, by iteration."""
    worker = Worker(line, SIZES)
    return [
        worker.step([layer.numpy() for layer in layers_of(iteration)]).payloads
        for iteration in range(iterations)
    ]


def test_a_floor_by_law_sends_what_the_number_would() -> None:
    law = {"constant": 2.0, "rms": 0.0, "p99": 1.5, "layer": 0.1}
    floor = law_by_hand(layers_of(0), **law)
    by_law = sent_by("entropy(law(2, p99=1.5, layer=0.1), decay=0)")
    by_number = sent_by(f"entropy({floor!r}, decay=0)")
    assert by_law[1:] == by_number[1:]
    assert by_law[1:] != sent_by(f"entropy({floor + 1!r}, decay=0)")[1:]


@in_turn(("constant", "floor"), [(50, 16), (-50, -16)])
def test_a_floor_stays_within_its_range(constant: float, floor: float) -> None:
    assert sent_by(f"entropy(law({constant}), decay=0)") == sent_by(f"entropy({floor}, decay=0)")
