"""docs/papers.md is what the claims and the results make, and verdicts follow the figures."""

import json
import re
from functools import cache

import pytest
from benchmarks.harness import pages
from benchmarks.papers import claims, counted, measure, oland_raj, thresholds


def test_the_page_is_what_the_claims_and_the_results_make():
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(), "python -m benchmarks.papers"


def test_the_page_of_thresholds_is_what_its_records_make():
    page = pages.results_of("thresholds").read_text(encoding="utf-8")
    for table in thresholds.tables():
        for cells in table.rows:
            assert f"| {' | '.join(cells)} |" in page


def records_of(tmp_path, monkeypatch, **cases):
    """Records of one part, with a line for each seed of each case; None instead of seeds: no chance."""
    lines = [
        {"part": "part", "case": case, "seed": seed, "value": value, "date": "2026-01-01"}
        for case, values in cases.items()
        for seed, value in (enumerate(values, start=1) if isinstance(values, tuple) else [(None, values)])
    ]
    (tmp_path / "some.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(claims, "RECORDS", tmp_path)
    for known in (claims.records, claims.figure):
        known.cache_clear()
        monkeypatch.setattr(claims, known.__name__, cache(known.__wrapped__))


def verdict_on(statement, **claim):
    return claims.verdict({"here": "measured", "shows": [statement], **claim})


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.0, 1.2, 1.4), claims.HELD),
        ((-1.0, -1.2, -1.4), claims.AGAINST),
        ((-1.0, 1.0, 2.0), claims.OPEN),  # the mean is on the claim's side, the interval is not
        ((1.0, 1.2), claims.OPEN),  # of two seeds
        ((1.0, 1.0, 1.0), claims.OPEN),  # no width
        ((1.0,), claims.OPEN),
        (1.0, claims.HELD),  # chance has no part
        (-1.0, claims.AGAINST),
    ],
)
def test_a_verdict_follows_the_interval(tmp_path, monkeypatch, values, verdict):
    records_of(tmp_path, monkeypatch, case=values, none=(0.0, 0.0, 0.0))
    at = "{some.jsonl: part: case: value}"
    assert verdict_on(f"{at} > 0") == verdict
    assert verdict_on(f"-9 < 2 * {at} / 2 < 0") == {
        claims.HELD: claims.AGAINST, claims.AGAINST: claims.HELD
    }.get(verdict, verdict)  # fmt: skip
    if isinstance(values, tuple) and len(values) == 3:
        assert verdict_on("{some.jsonl: part: case - none: value} > 0") == verdict


def test_a_claim_holds_with_all_of_its_quantities_and_fails_with_one(tmp_path, monkeypatch):
    records_of(tmp_path, monkeypatch, up=1.0, down=-1.0, wide=(-1.0, 0.0, 2.0))
    up, down, wide = (f"{{some.jsonl: part: {case}: value}} > 0" for case in ("up", "down", "wide"))
    for shows, verdict in (
        ([up, up], claims.HELD),
        ([up, wide], claims.OPEN),
        ([up, wide, down], claims.AGAINST),
        ([], claims.OPEN),
    ):
        assert claims.verdict({"here": "measured", "shows": shows}) == verdict
    assert claims.verdict({}) == claims.UNMEASURED
    assert claims.verdict({"here": "measured", "cannot": "ImageNet", "shows": [up]}) == claims.CANNOT


def test_a_network_that_has_not_learnt_judges_nothing(tmp_path, monkeypatch):
    records_of(
        tmp_path, monkeypatch, none=(90.0, 91.0, 92.0), half=(54.0, 55.0, 57.0), less=(60.0, 41.5, 62.0)
    )
    learnt = {"some.jsonl: part": {"baseline": "none", "accuracy": "value", "chance": 10}}
    for case, verdict in (("half", claims.AGAINST), ("less", claims.OPEN)):  # half above chance is 50.5
        statement = f"{{some.jsonl: part: {case} - none: value}} > 0"
        assert verdict_on(statement) == claims.AGAINST
        assert verdict_on(statement, learnt=learnt) == verdict


PAGE = """# Benchmark: some

Ten digits; 3 seeds.

## A table

| tau | points | share |
|---|---:|---:|
| 1 | +1.00 (+0.50 to +1.50) | 12.0 |
"""


def test_means_are_not_compared_where_there_are_seeds(tmp_path, monkeypatch):
    """A page's figure over seeds counts with its interval alone; claims.yaml is held to it by its page."""
    (tmp_path / "2026-01-01-some.md").write_text(PAGE, encoding="utf-8")
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert verdict_on("{some: A table: 1: points} > 0") == claims.HELD
    with pytest.raises(ValueError, match="compares means of 3 seeds"):
        verdict_on("{some: A table: 1: share} > 10")
    with pytest.raises(ValueError, match="a mean over seeds"):
        verdict_on("{some: A table: 1: share} / 2 > 10")
    for statement in ("{some: A table: 1: points} > {some: A table: 1: share}", "1 < {a: b} > 2", "{a: b}"):
        with pytest.raises(ValueError, match="QUANTITY > NUMBER"):
            verdict_on(statement)
    (tmp_path / "2026-01-01-exact.md").write_text(PAGE.replace("; 3 seeds", ""), encoding="utf-8")
    assert verdict_on("{exact: A table: 1: share} / 2 > 5") == claims.HELD


def test_a_figure_that_is_not_there_is_named_with_its_claim():
    figure = "{strom_speech: Thresholds: 5: than float32}"
    claim = {"claim": "A claim", "paper": "", "here": figure, "shows": [f"{figure} > 1"], "why": ""}
    with pytest.raises(LookupError, match=re.escape("A claim: 2026-11-23-strom_speech.md: no row '5'")):
        claims.row(claim)


def test_what_is_counted_is_what_the_papers_formulas_say():
    assert 512 <= counted.table(None)["bytes"] < 520  # 256 values of 16 bits a block (Rae, section 3.1)
    growth = counted.batch_growth(None)
    assert (growth["text, half"], growth["text, quarter"]) == (2, 4)
    assert (growth["formula, half"], growth["formula, quarter"]) == (2, 8)
    decay = counted.decay(None)
    assert decay == {"scaled": pytest.approx(1, abs=1e-3), "unchanged": pytest.approx(8**-0.5, abs=1e-3)}
    outlier = counted.outlier(1)
    assert outlier["blocks"] < 1.1 < outlier["whole"]


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


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_bits_a_weight_are_those_of_oland_and_rajs_formula(monkeypatch):
    monkeypatch.setattr(oland_raj, "EPOCHS", 2)
    none, fixed, floor = (
        oland_raj.train(line, 1e-5, 1)
        for line in ("none", "linear(bits=8, block=0)", "entropy(floor=5) | huffman")
    )
    assert none["raw"] == 32 < none["sent"] < 32.01  # and a header
    assert fixed["raw"] == pytest.approx(8, abs=0.01)
    assert 5 <= floor["raw"] <= 5 + oland_raj.SAMPLE_BITS + 0.01  # c + H, and H is at most M
    assert floor["sent"] < floor["raw"]
    assert none["best"] >= none["last"] > 30
    assert none["below/2"] > 1 < none["below/3"]  # figure 2


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
