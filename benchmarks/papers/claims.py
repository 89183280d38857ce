"""docs/papers.md: what the papers claim beside what was measured here, with verdicts that are computed.

claims.yaml has the claims. A figure in it is an address: {benchmark: table: row: column} in the newest page
of docs/results/ (`benchmarks.harness.pages`), {benchmark: /pattern/} for what a page says outside its tables,
or {PAPER.jsonl: part: case: value} in benchmarks/papers/records, which has a line a seed; it is shown as
the mean with its 95% interval (Student's t); `case - another` is their difference, seed by seed. [[...]] is
computed from figures. `holds` lists comparisons: all true: held, none: did not, else: in part. Without
`holds`, or without its records: not measured yet.
"""

import ast
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from taugrad.platform.tasks.claims import interval
from taugrad.platform.tasks.metric import LOSS

from ..harness import paired
from ..harness.pages import RESULTS, cell, results_of

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PAGE = RESULTS.parent / "papers.md"
RECORDS = FOLDER / "records"
UNMEASURED = "*not measured*"
COLUMNS = ("claim", "the paper", "here", "seeds", "verdict", "why", "measured by")
_ADDRESS = re.compile(r"\{(?P<source>[\w.]+): (?P<rest>[^{}]+)\}(?P<end>\.(?:low|high))?")
_NUMBER = r"([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)"
_OPERATORS: Mapping[type[ast.AST], Any] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
}


class NotMeasured(LookupError):
    """A record that `python -m benchmarks.papers PAPER` has still to make."""


@dataclass(frozen=True)
class Figure:
    """A measured figure: its text, and its numbers."""

    text: str
    mean: float
    low: float | None
    """The ends of its interval; None of one seed."""
    high: float | None
    seeds: int = 0
    """The number of seeds of records; 0 where chance has no part."""

    @classmethod
    def read(cls, text: str) -> "Figure":
        """Reads `+0.02 (-0.06 to +0.10)`, `1,427`, `82.6x` and the like; the first number is the mean."""
        numbers = [float(number.replace(",", "")) for number in re.findall(_NUMBER, text.strip("`"))]
        if not numbers:
            raise LookupError(f"no number in {text!r}")
        ends = re.search(rf"\({_NUMBER} to {_NUMBER}\)", text)
        return cls(text, numbers[0], *(numbers[1:3] if ends else (None, None)))

    @classmethod
    def over(cls, values: Sequence[float]) -> "Figure":
        """The mean over seeds with its 95% interval (Student's t); one value has none."""
        mean, ends = fmean(values), interval(list(values), None, LOSS)
        shown = f"{mean:.4g}" + (f" ({ends[0]:.4g} to {ends[1]:.4g})" if ends and ends[0] < ends[1] else "")
        return cls(shown, mean, *(ends or (None, None)))


@cache
def records(paper: str) -> tuple[dict[str, Any], ...]:
    """The lines of a paper's records, each of one seed; none where there is no such file."""
    path = RECORDS / paper
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return tuple(json.loads(line) for line in text.splitlines())


def figure(source: str, rest: str) -> Figure:
    """The figure at an address; raises LookupError: there is none."""
    if pattern := re.fullmatch(r"/(.+)/", rest):
        said = re.search(pattern[1], results_of(source).read_text(encoding="utf-8"))
        if said is None:
            raise LookupError(f"{results_of(source).name} does not say {pattern[1]!r}")
        return Figure.read(said[1])
    table, _, inner = rest.partition(": ")
    row, _, column = inner.rpartition(": ")
    if not source.endswith(".jsonl"):
        return Figure.read(cell(source, row, column, table))
    of_part = [line for line in records(source) if line["part"] == table]
    columns = [
        {line["seed"]: line[column] for line in of_part if line["case"] == case} for case in row.split(" - ")
    ]
    seeds = [seed for seed in columns[0] if all(seed in values for values in columns)]
    if not seeds:
        raise NotMeasured(f"{source}: no {column!r} of {row!r} in {table!r}")
    first, *others = columns
    values = [first[seed] - sum(other[seed] for other in others) for seed in seeds]
    at = Figure.read(paired.interval(values, 2)) if others else Figure.over(values)
    return replace(at, seeds=0 if seeds == [None] else len(seeds))


def evaluate(expression: str) -> float | bool:
    """Computes an expression over figures: + - * /, and chains of comparisons."""
    numbers: dict[str, float] = {}

    def named(address: re.Match[str]) -> str:
        at = figure(address["source"], address["rest"])
        number = {".low": at.low, ".high": at.high}.get(address["end"], at.mean)
        if number is None:
            raise NotMeasured(f"{address[0]}: one seed has no interval")
        numbers[name := f"figure{len(numbers)}"] = number
        return name

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                return numbers[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                sides = [value(side) for side in (left, *rights)]
                pairs = zip(ops, sides, sides[1:], strict=False)
                return all(_OPERATORS[type(op)](one, other) for op, one, other in pairs)
        raise ValueError(f"{expression!r}: only figures, numbers, + - * / and comparisons")

    return value(ast.parse(_ADDRESS.sub(named, expression), mode="eval").body)  # type: ignore[no-any-return]


def filled(text: str) -> str:
    """The text with its figures."""
    text = re.sub(r"\[\[(.+?)\]\]", lambda match: f"{evaluate(match[1]):.3g}", text)
    return _ADDRESS.sub(lambda address: figure(address["source"], address["rest"]).text, text)


def verdict(claim: Mapping[str, Any]) -> str:
    """Held, did not, in part or not measured."""
    true = [bool(evaluate(comparison)) for comparison in claim.get("holds", ())]
    if not true:
        return UNMEASURED
    return "**held**" if all(true) else "in part" if any(true) else "**did not**"


def _sources(claim: Mapping[str, Any]) -> list[str]:
    """The pages and records that a claim's figures come from, in the order of the text."""
    text = " ".join((claim.get("here", ""), *claim.get("holds", ()), claim.get("why", "")))
    return list(dict.fromkeys(address["source"] for address in _ADDRESS.finditer(text)))


def _seeds(claim: Mapping[str, Any], source: str) -> str:
    """How many seeds the figures of a page or of records have."""
    if not source.endswith(".jsonl"):
        said = re.search(r"\b(\d+|[Oo]ne) seeds?\b", results_of(source).read_text(encoding="utf-8"))
        return {"one": "1"}.get(said[1].lower(), said[1]) if said else ""
    recorded = [address for address in _ADDRESS.finditer(claim["here"]) if address["source"] == source]
    seeds = {figure(source, address["rest"]).seeds for address in recorded} - {0}
    return " and ".join(map(str, sorted(seeds)))


def _command(records_name: str) -> str:
    return f"python -m benchmarks.papers {records_name.removesuffix('.jsonl')}"


def _measured_by(source: str) -> str:
    """The command and the date of a page or of records, with a link."""
    if source.endswith(".jsonl"):
        return f"`{_command(source)}`, {max(line['date'] for line in records(source))}"
    path = results_of(source)
    said = re.search(r"- Command: `([^`]+)`", path.read_text(encoding="utf-8"))
    command = said[1].replace(" --write", "") if said else ""
    module = re.match(r"python -m ([\w.]+)", command)
    exists = module is not None and (ROOT / f"{module[1].replace('.', '/')}.py").is_file()
    if not exists:
        raise LookupError(f"{path.name} has no command that exists: {command!r}")
    return f"`{command}`, [{path.name[:10]}](results/{path.name})"


def row(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """A claim's cells; raises LookupError: a figure is not there; the message names the claim."""
    try:
        sources = _sources(claim)
        if not claim.get("holds"):
            raise NotMeasured
        here, why = filled(claim["here"]), filled(claim["why"])
        measured = "<br>".join(map(_measured_by, sources))
        seeds = _seeds(claim, sources[0])
        return (claim["claim"], claim["paper"], here, seeds, verdict(claim), why, measured)
    except NotMeasured as lacking:
        measuring = [f"`{_command(name)}`" for name in sources if name.endswith(".jsonl")]
        command = claim.get("command", measuring[0] if measuring else "")
        if claim.get("holds") and not command:
            raise LookupError(f"{claim['claim']}: {lacking}") from lacking
        return (claim["claim"], claim["paper"], "", "", UNMEASURED, "", command)
    except LookupError as problem:
        raise LookupError(f"{claim['claim']}: {problem.args[0]}") from problem


def papers() -> list[dict[str, Any]]:
    """What claims.yaml has."""
    read: list[dict[str, Any]] = yaml.safe_load((FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    return read


def page() -> str:
    """docs/papers.md as it should be."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# What the papers claim, and what was seen here",
        "",
        "A table for each paper, a line for each claim. Verdicts are computed from the figures by the",
        "comparisons in `benchmarks/papers/claims.yaml`; *in part*: some of them are true. Intervals are 95%",
        "intervals over seeds (Student's t). The linked results have machine, date and settings, and so has",
        "each line of `benchmarks/papers/records/`. Models and data are those that two cores train in",
        "minutes, mostly much smaller than the papers'.",
        "",
        "`make papers` writes this page; `make papers PAPERS=strom` first measures what is missing of a",
        "paper, and can be continued.",
    )
    for paper in papers():
        rows = [row(claim) for claim in paper["claims"]]
        verdicts = [cells[4].strip("*") for cells in rows]
        counts = (f"{verdicts.count(name)} {name}" for name in dict.fromkeys(sorted(verdicts)))
        about = f"{paper['about'].strip()} Claims: {', '.join(counts)}."
        yield from ("", f"## {paper['title']}", "", about, "")
        yield f"| {' | '.join(COLUMNS)} |"
        yield f"|{' --- |' * len(COLUMNS)}"
        yield from (f"| {' | '.join(cells)} |" for cells in rows)
