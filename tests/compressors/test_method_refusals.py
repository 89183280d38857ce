"""NaN and Inf in a gradient: every method refuses the bucket, says where, and loses nothing."""

from typing import Any

import numpy as np
import pytest
import torch
import workbench
from cases import in_turn
from numpy.typing import NDArray
from workbench import with_fields

from taugrad.compressors.ops.cpu.passes import CpuOps

Floats = NDArray[np.float32]
NAN, INF = float("nan"), float("inf")
LARGEST = float(np.finfo(np.float32).max)

broken = in_turn("value", [NAN, INF, -INF])


def gradients_with(value: float, ordinals: list[int]) -> list[Floats]:
    gradients: list[Floats] = workbench.random_gradients(7)
    for ordinal in ordinals:
        gradients[ordinal][-1] = value
    return gradients


def check_refused(worker: object, before: list[Floats], gradients: list[Floats], step: object) -> None:
    """Nothing was sent, and residuals gained every finite element and no other."""
    for i, gradient in enumerate(gradients):
        with np.errstate(all="ignore"):
            total = before[i] + gradient
        due = np.where(np.isfinite(total), total, before[i])
        assert not step.decoded[i].any()  # type: ignore[attr-defined]
        if worker.residuals[i] is None:  # type: ignore[attr-defined]
            continue  # it is sent whole
        found = worker.residual(i)  # type: ignore[attr-defined]
        np.testing.assert_allclose(found, due, rtol=1e-6, atol=1e-6)
        assert np.isfinite(found).all()
        broken_N = ~np.isfinite(total)
        assert found[broken_N].tobytes() == before[i][broken_N].tobytes()
        tally = step.tallies[i]  # type: ignore[attr-defined]
        assert (tally.name, tally.elements, tally.sent) == (f"p{i}", gradient.size, 0)
        squares = float(np.square(found, dtype=np.float64).sum())
        assert tally.residual_squares == pytest.approx(squares, rel=1e-4)


@broken
@in_turn("ordinals", [[0], [1], [2], [3], [1, 3], [0, 1, 2, 3]])
@in_turn("exempt", [[], ["p1", "p2"]])
def test_a_refusal_names_the_first_parameter_and_loses_nothing(
    method: str, exempt: list[str], value: float, ordinals: list[int]
) -> None:
    worker = workbench.Worker(with_fields(method, f"exempt={{'names': {exempt}}}"))
    worker.step(workbench.random_gradients(1))
    before = [worker.residual(i) for i in range(4)]
    gradients = gradients_with(value, ordinals)
    step = worker.step(gradients)
    assert step.refused == [ordinals[0]]
    assert len(step.payloads[0]) == 28
    check_refused(worker, before, gradients, step)
    worker.put_back(step)  # which took nothing out
    check_refused(worker, before, gradients, step)
    after = worker.step(workbench.random_gradients(2))
    assert after.refused == []


def test_a_sum_that_overflows_is_refused(method: str) -> None:
    worker = workbench.Worker(method)
    for residual in worker.residuals:
        residual[-1] = LARGEST
    before = [worker.residual(i) for i in range(4)]
    gradients = [np.zeros(size, np.float32) for size in workbench.SIZES]
    gradients[3][:] = 0.01
    gradients[3][-1] = LARGEST
    step = worker.step(gradients)
    assert step.refused == [3]
    for i in range(4):
        assert np.isfinite(worker.residual(i)).all()
    assert worker.residual(3)[-1] == before[3][-1]


def test_zeros_with_a_nan_are_not_held_back(method: str) -> None:
    worker = workbench.Worker(method)
    gradients = [np.zeros(size, np.float32) for size in workbench.SIZES]
    gradients[1][3] = NAN
    assert worker.step(gradients, hold_back_zeros=True).refused == [1]


def test_momentum_stays_finite_and_the_refusal_names_the_parameter() -> None:
    worker = workbench.Worker("wgt(0.5, momentum=0.9)")
    worker.step(workbench.random_gradients(1))
    before = [velocity.numpy().copy() for velocity in worker.velocities]
    step = worker.step(gradients_with(INF, [1]))
    assert step.refused == [1]
    assert all(np.isfinite(velocity.numpy()).all() for velocity in worker.velocities)
    assert all(np.isfinite(worker.residual(i)).all() for i in range(4))
    assert worker.velocities[1].numpy()[-1] == before[1][-1]


@in_turn("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_gradients_of_any_type_are_compressed_as_float32(method: str, dtype: torch.dtype) -> None:
    worker, twin = workbench.Worker(method, dtype=dtype), workbench.Worker(method)
    for seed in range(2):
        gradients = workbench.random_gradients(seed)
        rounded = [torch.from_numpy(each).to(dtype).float().numpy() for each in gradients]
        step, due = worker.step(gradients), twin.step(rounded)
        assert step.payloads == due.payloads
        for i in range(4):
            assert worker.residual(i).tobytes() == twin.residual(i).tobytes()


class Undefined(CpuOps):
    """What a pass does not write is 0xFF, and no symbol may lie behind the end of its table."""

    def empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return np.full(size * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype)

    def write_values(
        self, form: str, symbols: NDArray[Any], block: int, tables: tuple[Any, ...], *where: Any
    ) -> None:
        if form == "quantile":
            assert int(symbols.max()) < tables[1].size // tables[0].size
        super().write_values(form, symbols, block, tables, *where)


@in_turn("line", ["quantile(3, block=100)", "quantile(10)"])
def test_what_a_refused_parameter_has_no_symbols_for_is_not_looked_up(line: str) -> None:
    worker = workbench.Worker(line, ops=Undefined())
    gradients = workbench.random_gradients(1)
    gradients[1][:] = NAN
    assert worker.step(gradients).refused == [1]
