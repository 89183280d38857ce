"""docs/papers.md is what the claims and the results make, and verdicts follow the figures."""

import re
from statistics import fmean, stdev

import numpy as np
import pytest
from benchmarks.harness import pages
from benchmarks.papers import claims, measure, thresholds

STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""Of 95%, by degrees of freedom."""


def test_the_page_is_what_the_claims_and_the_results_make():
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(), "python -m benchmarks.papers"


def test_a_sample_of_figures_is_that_of_the_results():
    row = "| 4 | 54.30 | -0.59 (-7.41 to +6.22) | 0.618 | 2,366x | 1,183x | 13.31 |"
    assert row in (pages.RESULTS / "2026-11-23-strom_speech.md").read_text(encoding="utf-8")
    figure = claims.figure("strom_speech", "Thresholds: 4: points more than none (95%)")
    assert (figure.mean, figure.low, figure.high) == (-0.59, -7.41, 6.22)
    assert claims.figure("strom_speech", "Thresholds: 4: than float32").mean == 2366
    assert claims.figure("anoosheh", "QGT: 0.01: paper GB").mean == 0.0742  # other tables have such rows
    assert claims.figure("anoosheh", "WGT: 0.01: paper GB").mean == 0.269


def test_the_page_of_thresholds_is_what_its_records_make():
    page = pages.results_of("thresholds").read_text(encoding="utf-8")
    for table in thresholds.tables():
        for cells in table.rows:
            assert f"| {' | '.join(cells)} |" in page


def test_a_law_is_told_from_chance():
    """Where best taus are a power of the gradients' size, it is; where they are not, one tau is as good."""
    rng = np.random.default_rng(1)

    def pairs(slope):
        for model in thresholds.MODELS:
            for data in thresholds.DATA:
                features = rng.normal(size=len(thresholds.FEATURES))
                best = 1 + slope * features[0] + 0.05 * rng.normal()
                taus = np.log([0.01, 0.1, 1, 10, 100])[::-1]
                curve = thresholds.Curve(taus, 2 * np.exp(taus - best), -taus)
                yield thresholds.Pair(model, data, features, curve, curve, {})

    for slope, holds in ((1.0, True), (0.0, False)):
        some = list(pairs(slope))
        law, one = (
            [abs(judged.missed) for judged in thresholds.judge(some, rule, "other pairs", 2.0)]
            for rule in ("law", "one tau")
        )
        assert (fmean(law) < 0.5 * fmean(one)) == holds


@pytest.mark.parametrize(
    ("low", "verdict"), [(-2.0, "in part"), (-0.5, "**held**"), (None, "*not measured*")]
)
def test_a_verdict_follows_the_figures(tmp_path, monkeypatch, low, verdict):
    page = "## Some table\n\n| tau | points | share |\n|---|---:|---:|\n| 1 | +1.00 ({} to +3.00) | 12.0 |\n"
    (tmp_path / "2026-01-01-some.md").write_text(page.format(low), encoding="utf-8")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    holds = ["{some: Some: 1: points}.low >= -1", "10 < {some: Some: 1: share} / 1 <= 12"]
    assert claims.verdict({"holds": [] if low is None else holds}) == verdict
    assert claims.verdict({"holds": ["{some: Some: 1: share} > 12"]}) == "**did not**"


def test_records_are_shown_as_means_with_their_intervals():
    shown = claims.Figure.over([1.0, 2.0, 4.0])
    half = STUDENT[2] * stdev([1.0, 2.0, 4.0]) / 3**0.5
    assert (shown.mean, shown.low) == (pytest.approx(fmean([1, 2, 4])), pytest.approx(7 / 3 - half, abs=1e-3))
    one = claims.Figure.over([3.0])
    assert (one.text, one.low) == ("3", None)  # of one seed nothing is said to be outside chance


def test_a_figure_that_is_not_there_is_named_with_its_claim():
    figure = "{strom_speech: Thresholds: 5: than float32}"
    claim = {"claim": "A claim", "paper": "", "here": figure, "holds": [f"{figure} > 1"], "why": ""}
    with pytest.raises(LookupError, match=re.escape("A claim: 2026-11-23-strom_speech.md: no row '5'")):
        claims.row(claim)


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_a_reduced_form_has_the_order_of_the_methods():
    runs = {
        line: measure.accuracy(measure.digits(1, line, epochs=2))
        for line in ("none", "wgt(0.02)", "qgt(0.01)", "bgt(0.1)")
    }
    assert runs["none"]["accuracy"] > 85
    per_byte = {line.partition("(")[0]: run["accuracy"] / run["paper"] for line, run in runs.items()}
    assert per_byte["none"] < per_byte["wgt"] < per_byte["qgt"] < per_byte["bgt"]  # Anoosheh, section 5
    slow = [measure.step_on("ResNet-50", method, "10mbit", None)["seconds"] for method in measure.METHODS]
    whole, half, linear, quantile, much, little, both, strom = slow
    assert strom < both < little < linear < quantile < half < much < whole  # Rae's techniques


def test_a_measurement_continues_where_it_was_stopped(tmp_path, monkeypatch):
    asked = []

    def measured(seed):
        asked.append(seed)
        if asked == [1, 2]:
            raise KeyboardInterrupt
        return {"value": float(seed)}

    monkeypatch.setattr(measure, "begin", lambda: None)
    monkeypatch.setattr(measure, "RECORDS", tmp_path)
    monkeypatch.setattr(measure, "PAPERS", {"some": {"part": measure.Part({"case": measured})}})
    with pytest.raises(KeyboardInterrupt):
        measure.measure("some")
    measure.measure("some")
    assert asked == [1, 2, 2, 3]
    monkeypatch.setattr(claims, "RECORDS", tmp_path)
    claims.records.cache_clear()
    assert claims.figure("some.jsonl", "part: case: value").text == "2 (-0.4841 to 4.484)"
    assert claims.figure("some.jsonl", "part: case - case: value").mean == 0
    with pytest.raises(claims.NotMeasured):
        claims.figure("some.jsonl", "part: another: value")
    claims.records.cache_clear()
