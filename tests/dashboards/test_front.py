"""The figure of a search: what is drawn is what was found."""

import pytest

from taugrad.dashboards.dimensions import Trial, value_by_dimension
from taugrad.dashboards.front import FrontPoint, search_front
from taugrad.dashboards.palette import RULES
from taugrad.dashboards.runs import RunHistory
from taugrad.platform.tasks.metric import ACCURACY

BASELINE = FrontPoint("none", 97.0, None, 100.0)
POINTS = [
    FrontPoint("strom", 40.0, None, 0.01, place=1),
    FrontPoint("strom", 95.0, (94.5, 95.5), 0.5, place=2, best=True),
    FrontPoint("wgt", 94.0, None, 2.0),
    FrontPoint("wgt", 96.5, None, 5.0, place=3),
]


def drawn(figure):
    """Every point of every line of the axes."""
    (axes,) = figure.axes
    return {(float(x), float(y)) for line in axes.lines for x, y in zip(*line.get_data(), strict=True)}, axes


def test_the_front_and_what_it_beats_are_drawn():
    points, axes = drawn(search_front("mine", POINTS, BASELINE, ACCURACY))
    assert {(0.5, 95.0), (2.0, 94.0), (5.0, 96.5), (100.0, 97.0)} <= points
    assert (5.0, 95.0) in points  # the front's step
    low, high = axes.get_ylim()
    assert low < 94.0
    assert high > 97.0
    assert {text.get_text() for text in axes.texts} >= {"2: strom 95.00%, best", "3: wgt 96.50%"}


def test_points_that_hardly_learned_are_named_and_not_drawn():
    figure = search_front("mine", POINTS, BASELINE, ACCURACY)
    points, axes = drawn(figure)
    assert axes.get_ylim()[0] > 40.0
    assert axes.get_xlim()[0] > 0.01
    assert (0.01, 40.0) not in points
    said = " ".join(text.get_text() for text in figure.texts)
    assert "below the axis: 1" in " ".join(said.split())


def trial(rule, accuracy, mark, **params):
    run = RunHistory("id", "name", rule, None, {f"compressor.{k}": str(v) for k, v in params.items()}, {}, {})
    return Trial(run, accuracy, mark)


def test_dimensions_have_panels_of_their_own_scale():
    trials = [
        trial("wgt", 90.0, "front", tau=0.001),
        trial("wgt", 80.0, "beaten", tau=5.0),
        trial("strom", 70.0, "stopped", tau=0.1),
        trial("entropy", 95.0, "front", floor=2),
        trial("entropy", 94.0, "beaten", floor=8),
    ]
    named = {"compressor.tau": "tau", "compressor.floor": "floor", "compressor.bits": "bits"}
    tau, floor = value_by_dimension(trials, named, ACCURACY).axes
    assert (tau.get_xscale(), floor.get_xscale()) == ("log", "linear")
    placed = {(float(x[0]), float(y[0])): line for line in tau.lines for x, y in [line.get_data()]}
    assert placed.keys() == {(0.001, 90.0), (5.0, 80.0), (0.1, 70.0)}
    assert placed[0.001, 90.0].get_color() == RULES["wgt"].color
    assert placed[5.0, 80.0].get_color() not in (RULES["wgt"].color, placed[0.1, 70.0].get_color())
    assert placed[0.1, 70.0].get_marker() == "x"
    with pytest.raises(ValueError, match="no dimension"):
        value_by_dimension(trials[:1], named, ACCURACY)
