"""What is decided from what was measured: against links whose delay and rate are known."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from taugrad.platform.synchronization.adapting.adapter import Measured, typical, window_of
from taugrad.platform.synchronization.adapting.choice import Adaptation, Chooser, LinkEstimate
from taugrad.platform.synchronization.config import Adapt

ELEMENTS, COMPUTE_S, WAIT, EVERY = 1_000_000, 0.05, 0.2, 10
LEAST, MOST = 0.0005, 0.1
MBIT = 1e6 / 8
FOLLOWS = 50
"""Steps, at most, from a change of the link to the density that is right for it."""


def nbytes_of(density: float) -> float:
    """A message's: positions by Shannon and a sign, 3% above that, and a header."""
    entropy = -density * math.log2(density) - (1 - density) * math.log2(1 - density)
    return 300 + 1.03 * ELEMENTS * (entropy + density) / 8


@dataclass
class SimulatedRun:
    """A run over a link, as `Adapter` sees it: windows of EVERY steps, the first of which is left out."""

    delay: Callable[[int], float]
    rate: Callable[[int], float]
    """Of a step: seconds, and bytes a second."""
    hides_s: float = 0.0
    """Of an exchange's seconds so many go on beside computing."""
    noise: float = 0.0
    """Of all seconds, as a part of them."""
    chooser: Chooser = field(default_factory=lambda: Chooser(Adapt(wait=WAIT, every=EVERY), 0.01, 1.0))
    choice: Adaptation = field(default_factory=lambda: Adaptation(0.01))

    def run(self, steps: int, seed: int = 0) -> list[Adaptation]:
        """What was in force in each step."""
        chance, link, results = random.Random(seed), LinkEstimate(), []
        seen: list[Measured] = []
        while len(results) < steps:
            number = len(results)
            results += [self.choice] * self.choice.local_steps
            if len(seen) >= max(1, EVERY / self.choice.local_steps):
                link.add(window_of([typical(seen)] * 2))
                self.choice, seen = self.chooser.choose(link, self.choice), []
                continue
            nbytes = nbytes_of(self.choice.density) * chance.uniform(0.95, 1.05)
            exchange_s = self.delay(number) + nbytes / self.rate(number)
            exchange_s *= max(0.1, chance.gauss(1, self.noise))
            compute_s = COMPUTE_S * max(0.1, chance.gauss(1, self.noise))
            seen.append(Measured(compute_s, max(0.0, exchange_s - self.hides_s), exchange_s, nbytes))
        return results


def right(delay: float, rate: float, hides_s: float = 0.0) -> float:
    """The largest density whose exchange fits, by bisection."""
    room = max(WAIT / (1 - WAIT) * COMPUTE_S + hides_s - delay, WAIT * delay)
    low, high = LEAST, MOST
    if nbytes_of(high) / rate <= room:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if nbytes_of(middle) / rate <= room else (low, middle)
    return low


def near(density: float, expected: float) -> bool:
    return expected / 2 <= density <= 2 * expected


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("hides_s", [0.0, 0.03])
@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005])
def test_it_follows_a_link_that_becomes_slower_and_fast_again(delay, hides_s, noise):
    slower, faster, end = 103, 203, 300
    for seed in range(3):
        run = SimulatedRun(
            lambda _: delay,
            lambda number: 10 * MBIT if slower <= number < faster else 100 * MBIT,
            hides_s,
            noise,
        )
        actual = run.run(end, seed)
        expected = {rate: right(delay, rate * MBIT, hides_s) for rate in (10, 100)}
        for changed, until, rate in ((0, slower, 100), (slower, faster, 10), (faster, end, 100)):
            for choice in actual[changed + FOLLOWS : until]:
                assert near(choice.density, expected[rate]), (seed, changed, choice, expected)
        assert all(LEAST <= choice.density <= MOST for choice in actual)


@pytest.mark.parametrize("delay", [0.0, 0.005])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_over_a_constant_link_it_settles_and_stays(delay, noise):
    for seed in range(3):
        result = SimulatedRun(lambda _: delay, lambda _: 20 * MBIT, 0.0, noise).run(600, seed)
        settled = {choice.density for choice in result[100:]}
        assert len(settled) == 1, (seed, settled)
        assert near(settled.pop(), right(delay, 20 * MBIT))


def test_a_delay_that_grows_is_told_from_a_rate_that_falls():
    changed = 100
    run = SimulatedRun(lambda number: 0.04 if number >= changed else 0.001, lambda _: 20 * MBIT)
    result = run.run(200)
    # It is tried whether fewer bytes help; they do not.
    assert min(choice.density for choice in result[changed:]) < 0.5 * result[changed].density
    assert near(result[-1].density, right(0.04, 20 * MBIT))


def test_local_steps_and_density_are_chosen_together():
    adapt = Adapt(wait=WAIT, every=EVERY, local_steps=(2, 40))
    expected = {}
    for rate in (1, 10, 100):
        chooser = Chooser(adapt, 0.01, 1.0)
        speed = rate * MBIT
        actual = SimulatedRun(
            lambda _: 0.01, lambda _, of=speed: of, chooser=chooser, choice=Adaptation(0.01, 4)
        )
        choice = actual.run(1500)[-1]
        # Of one exchange at the density that the method was given, and of the steps that may wait for it.
        steps = (0.01 + nbytes_of(0.01) / speed) / (WAIT / (1 - WAIT) * COMPUTE_S)
        assert choice.local_steps == pytest.approx(min(40, max(2, math.ceil(steps))), rel=0.25)
        waits = 0.01 + nbytes_of(choice.density) / speed
        expected[rate] = waits / (waits + COMPUTE_S * choice.local_steps)
        assert WAIT / 1.5 < expected[rate] < WAIT * 1.3 or choice.density == MOST
    assert len(expected) == 3
