"""The report as an HTML page that needs neither network nor scripts."""

import base64
import importlib.resources
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taugrad import __version__
from taugrad.platform.tasks.claims import CONFIDENCE
from taugrad.platform.tracking import names

from . import statements, style, verdict
from .gallery import Picture
from .groups import SIXTEEN_BITS, Comparison, Group, baseline
from .link import size
from .method_table import change_cell, change_heading, columns, interval, signed, texts_of
from .palette import rule_style

_TEMPLATE = "report.html.j2"
_MOST_LINKS = 12  # runs that are linked one by one
_SHOWN_ID = 8  # characters


@dataclass(frozen=True, eq=False)
class Report:
    """The content of a page."""

    experiment: str
    only: str
    """MLflow's filter of runs; empty for all."""
    comparisons: Sequence[Comparison]
    """All settings that finished; pictures, headline and cards are about the first comparison."""
    pictures: Sequence[Picture]
    left_out: int
    """Runs that did not train to their end."""
    made: datetime
    runs_url: str | None
    """The URL that a run's id is appended to; None without a server."""


def render(report: Report) -> str:
    """The report as HTML, with pictures and style in it."""
    import jinja2  # noqa: PLC0415 - only needed here

    text = importlib.resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    found = [_comparison(comparison, report.runs_url) for comparison in report.comparisons]
    return environment.from_string(text).render(
        experiment=report.experiment,
        quoted=shlex.quote(report.experiment),
        only=report.only,
        comparisons=found,
        cards=[_card(pick) for pick in verdict.picks(report.comparisons[0].groups)],
        pictures=[_picture(picture, report.runs_url) for picture in report.pictures],
        left_out=report.left_out,
        linked=report.runs_url is not None,
        confidence=f"{100 * CONFIDENCE:g}%",
        made=report.made.strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
    )


def _comparison(comparison: Comparison, runs_url: str | None) -> dict[str, Any]:
    groups, metric = comparison.groups, comparison.metric
    reference = baseline(groups)
    return {
        "name": comparison.name,
        "headline": _headline(groups),
        "subline": _subline(groups),
        "best": [_best(group, reference) for group in verdict.representatives(groups, most=20)],
        "metric": metric,
        "reached": columns(metric)[0].heading,
        "moved": change_heading(metric),
        "moved_by": metric.difference_unit or "change",
        "margin": metric.amount(verdict.allowed_losses(groups)[:2][-1]),
        "columns": columns(metric),
        "rows": [_row(group, reference, runs_url) for group in groups],
        "compressed": sum(not group.is_baseline for group in groups),
    }


def _headline(groups: Sequence[Group]) -> str:
    answer = verdict.headline(groups)
    if answer is not None:
        factor, against = verdict.headline_factor(answer.group)
        times = _times(factor * answer.compression.mean)
        return f"{_method(answer.group)} sends {times} times less than {against}, at {_reached(answer)}"
    if baseline(groups) is None:
        return "No run without compression to compare with"
    if all(group.is_baseline for group in groups):
        return "No compressed run to compare yet"
    metric, allowed = groups[0].metric, verdict.allowed_losses(groups)[-1]
    return f"No compressed run came within {metric.amount(allowed)} of the {metric.label} without"


def _reached(pick: verdict.Pick) -> str:
    """`97.40% accuracy`, `a test loss of 2.0551 nats`."""
    metric = pick.group.metric
    text = metric.written(pick.value.mean)
    return f"{text} {metric.label}" if metric.unit == "%" else f"a {metric.label} of {text}"


def _subline(groups: Sequence[Group]) -> str:
    answer, reference = verdict.headline(groups), baseline(groups)
    value = reference.value if reference else None
    wire = reference.estimate(names.TOTAL_WIRE_GB, 1e9) if reference else None
    metric = groups[0].metric
    if value is None or wire is None:
        return (
            "Train the same with compressor: none, and this page can say what is saved at what "
            f"{metric.label}."
        )
    whole = f"Without compression: {metric.written(value.mean)} and {size(wire.mean)} in float32."
    if answer is None:
        return whole
    sent = answer.group.estimate(names.TOTAL_WIRE_GB, 1e9)
    _, against = verdict.headline_factor(answer.group)
    times = "" if against == "float32" else f", {_times(answer.compression.mean)} times less than float32"
    bytes_sent = f"With {size(sent.mean)} on the wire{times}. " if sent else ""
    return f"{statements.sentence(answer.change)}. {bytes_sent}{whole} {statements.seeds(answer.change)}"


def _card(pick: verdict.Pick) -> dict[str, str]:
    factor, against = verdict.headline_factor(pick.group)
    change, metric = pick.change, pick.group.metric
    moved = f"{signed(change.mean, metric.digits)} {metric.difference_unit}".rstrip()
    sure = f"95% interval {interval(change)}" if change.low is not None else "no interval"
    return {
        "title": statements.title(pick.change, pick.allowed_loss),
        "times": f"{_times(factor * pick.compression.mean)}×",
        "against": against,
        "method": _method(pick.group),
        "value": metric.written(pick.value.mean),
        "change": f"{moved}, {sure}",
        "color": rule_style(pick.group.rule).color,
    }


def _best(group: Group, reference: Group | None) -> dict[str, str]:
    value, ratio, metric = group.value, group.compression, group.metric
    change = verdict.change(group, reference)
    return {
        "rule": group.rule,
        "setting": group.setting,
        "color": rule_style(group.rule).color,
        "times": f"{_times(ratio.mean)}×" if ratio else "",
        "times_16": f"{_times(SIXTEEN_BITS * ratio.mean)}×" if ratio else "",
        "value": f"{value.mean:.{metric.digits}f}" if value else "",
        "change": signed(change.mean, metric.digits) if change else "",
        "interval": (interval(change) or "none") if change else "",
    }


def _row(group: Group, reference: Group | None, runs_url: str | None) -> dict[str, Any]:
    method, setting = texts_of(group)
    return {
        "method": method,
        "setting": setting,
        "color": rule_style(method).color,
        "cells": [column.cell(group) for column in columns(group.metric)],
        "change": change_cell(verdict.change(group, reference)),
        "links": _links([run.run_id for run in group.runs], runs_url),
    }


def _picture(picture: Picture, runs_url: str | None) -> dict[str, Any]:
    return {
        "key": picture.key,
        "heading": picture.heading,
        "caption": picture.caption,
        "wide": _data_url(picture.wide),
        "narrow": _data_url(picture.narrow),
        "links": _links(picture.run_ids[:_MOST_LINKS], runs_url),
        "more": max(0, len(picture.run_ids) - _MOST_LINKS),
    }


def _links(run_ids: Sequence[str], runs_url: str | None) -> list[tuple[str, str, str | None]]:
    """For each run what is shown, its whole id, and its address where a server is known."""
    return [(run_id[:_SHOWN_ID], run_id, f"{runs_url}{run_id}" if runs_url else None) for run_id in run_ids]


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _method(group: Group) -> str:
    if not group.setting:
        return group.rule
    return (
        f"{group.rule} at tau {group.setting}" if group.tau is not None else f"{group.rule}, {group.setting}"
    )


def _times(value: float) -> str:
    return style.decimal(value, 2 if value < 100 else 3)
