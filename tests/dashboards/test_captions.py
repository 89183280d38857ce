"""Captions follow the data: runs that do the contrary of what runs usually do are described as they are."""

import numpy as np
import pytest

from taugrad.dashboards import captions
from taugrad.dashboards.runs import RunHistory
from taugrad.platform.tracking import names

STEPS = np.arange(1, 101)


def run(name: str, rule: str, metrics: dict[str, np.ndarray], **more: float | str) -> RunHistory:
    finals = {key: value for key, value in more.items() if isinstance(value, float)}
    params = {key: value for key, value in more.items() if isinstance(value, str)}
    finals |= {metric: float(values[-1]) for metric, values in metrics.items()}
    histories = {metric: (STEPS[: len(values)], values) for metric, values in metrics.items()}
    return RunHistory(name, name, rule, 0.01 if rule != "none" else None, params, histories, finals)


@pytest.mark.parametrize(
    ("fractions", "expected"),
    [
        (np.linspace(0.01, 0.2, 100), "growing 1.9% to 19% (up)"),
        (np.linspace(0.2, 0.01, 100), "growing 19% to 1.9% (down)"),
        (np.full(100, 0.05), "growing 5% to 5% (flat)"),
        (np.zeros(100), "growing 0% to 0% (flat)"),
    ],
)
def test_what_is_sent_goes_where_it_goes(fractions: np.ndarray, expected: str) -> None:
    said = captions.sent([run("growing", "wgt", {names.COMM_FRACTION: fractions})])
    assert expected in said
    assert "shrink" not in said


def test_gradients_that_grow_are_said_to_grow() -> None:
    metrics = {
        f"layer/{layer}/{what}": np.linspace(1, 10, 100)
        for layer in ("a", "b")
        for what in ("grad_p50", "grad_p99")
    }
    metrics["layer/a/tau"] = np.full(100, 5.0)
    metrics["layer/b/grad_p99"] = metrics["layer/b/grad_p99"][::-1]
    said = captions.gradients(run("x", "wgt", metrics))
    assert "a 1.4 to 9.6 (up), b 9.6 to 1.4 (down)" in said
    assert "at least 1% of the layer's elements exceed tau" in said
