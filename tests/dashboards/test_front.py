"""The figure of a search: what is drawn is what was found."""

from taugrad.dashboards.front import FrontPoint, search_front
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
