"""docs/papers.md: what the papers claim beside what was measured here, with verdicts that are computed.

claims.yaml has the claims. A figure in it is an address: {benchmark: table: row: column} in the newest page
of docs/results/ (`benchmarks.harness.pages`), {benchmark: /pattern/} for what a page says outside its tables,
or {PAPER.jsonl: part: case: value} in benchmarks/papers/records, which has a line a seed; it is shown as
the mean with its 95% interval (Student's t); `case - another` is their difference, seed by seed. [[...]] is
computed from figures, seed by seed.

`shows` lists what the claim says of a quantity: `QUANTITY > NUMBER`, `QUANTITY < NUMBER` or both ends,
`NUMBER < QUANTITY < NUMBER`. The verdict follows from the quantities' intervals:

- **held**: all of them lie where the claim has them, with their whole intervals;
- **did not**: one of them lies elsewhere with its whole interval;
- open: anything else, and a claim without `shows`. Fewer than three seeds and an interval of no width
  judge nothing, and neither does a network that has not learnt (`learnt`: its accuracy above chance is
  less than half of the baseline's). What chance has no part in is judged as it is;
- *cannot be judged here*: `cannot` says what it would take;
- *not measured*: without `here`, or without its records; `why` may say why.

Means cannot be compared where there are seeds: a quantity over seeds that has no interval is refused.
Sums leave out what is not in a paper, and repeats of a claim over models and links: `paper: as above`, and
all but the first of `each`, which writes a claim once for several values of its $names.
"""

import ast
import json
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

import yaml

from taugrad.platform.tasks.claims import interval
from taugrad.platform.tasks.metric import LOSS

from ..harness import report
from ..harness.pages import RESULTS, cell, results_of

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PAGE = RESULTS.parent / "papers.md"
RECORDS = FOLDER / "records"
HELD, AGAINST, OPEN = "**held**", "**did not**", "open"
CANNOT, UNMEASURED = "*cannot be judged here*", "*not measured*"
REPEAT, NOWHERE = "as above", "not in a paper"
FEWEST_SEEDS = 3
COLUMNS = ("claim", "the paper", "here", "seeds", "verdict", "why", "measured by")
_ADDRESS = re.compile(r"\{(?P<source>[\w.]+): (?P<rest>[^{}]+)\}")
_NUMBER = r"([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)"
_SHOWS = re.compile(rf"(?:{_NUMBER} < )?(.+) ([<>]) {_NUMBER}")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


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
    """The number of seeds; 0 where chance has no part."""

    @classmethod
    def read(cls, text: str, seeds: int = 0) -> "Figure":
        """Reads `+0.02 (-0.06 to +0.10)`, `1,427`, `82.6x` and the like; the first number is the mean."""
        numbers = [float(number.replace(",", "")) for number in re.findall(_NUMBER, text.strip("`"))]
        if not numbers:
            raise LookupError(f"no number in {text!r}")
        ends = re.search(rf"\({_NUMBER} to {_NUMBER}\)", text)
        return cls(text, numbers[0], *(numbers[1:3] if ends else (None, None)), seeds)

    @classmethod
    def over(cls, values: Mapping[int | None, float]) -> "Figure":
        """The mean over seeds with its 95% interval (Student's t); one value has none."""
        mean, ends = fmean(values.values()), interval(list(values.values()), None, LOSS)
        shown = f"{mean:.4g}" + (f" ({ends[0]:.4g} to {ends[1]:.4g})" if ends and ends[0] < ends[1] else "")
        return cls(shown, mean, *(ends or (None, None)), 0 if None in values else len(values))

    def within(self, least: float, most: float) -> bool | None:
        """Whether all of it lies there; False: all of it lies elsewhere; None: it does not say."""
        low, high = (self.mean, self.mean) if self.seeds == 0 else (self.low, self.high)
        if low is None or high is None or (self.seeds and (self.seeds < FEWEST_SEEDS or low == high)):
            return None
        return False if high < least or low > most else True if least <= low and high <= most else None


@cache
def records(paper: str) -> tuple[dict[str, Any], ...]:
    """The lines of a paper's records, each of one seed; none where there is no such file."""
    path = RECORDS / paper
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return tuple(json.loads(line) for line in text.splitlines())


def parts_of(rest: str) -> tuple[str, str, str]:
    """An address without its source, as table (or part), row (or case) and column (or value)."""
    table, _, inner = rest.partition(": ")
    row, _, column = inner.rpartition(": ")
    return table, row, column


def values_of(source: str, rest: str) -> dict[int | None, float]:
    """The values of an address by seed, None where chance has no part; raises LookupError: it has none."""
    table, row, column = parts_of(rest)
    if not source.endswith(".jsonl"):
        at = figure(source, rest)
        if at.seeds:
            raise ValueError(f"{{{source}: {rest}}} is a mean over seeds, which nothing can be computed from")
        return {None: at.mean}
    of_part = [line for line in records(source) if line["part"] == table]
    columns = [
        {line["seed"]: line[column] for line in of_part if line["case"] == case} for case in row.split(" - ")
    ]
    if not (seeds := [seed for seed in columns[0] if all(seed in values for values in columns)]):
        raise NotMeasured(f"{source}: no {column!r} of {row!r} in {table!r}")
    first, *others = columns
    return {seed: first[seed] - sum(other[seed] for other in others) for seed in seeds}


@cache
def figure(source: str, rest: str) -> Figure:
    """The figure at an address; raises LookupError: there is none."""
    if pattern := re.fullmatch(r"/(.+)/", rest):
        said = re.search(pattern[1], results_of(source).read_text(encoding="utf-8"))
        if said is None:
            raise LookupError(f"{results_of(source).name} does not say {pattern[1]!r}")
        return Figure.read(said[1])
    table, row, column = parts_of(rest)
    if not source.endswith(".jsonl"):
        return Figure.read(cell(source, row, column, table), _seeds_of_page(source, table))
    at = Figure.over(values := values_of(source, rest))
    return replace(at, text=report.interval(list(values.values()), 2)) if " - " in row else at


def _seeds_of_page(source: str, table: str) -> int:
    """The seeds that a page's introduction or that table's section tells of; 0: none."""
    introduction, *sections = results_of(source).read_text(encoding="utf-8").split("\n## ")
    here = introduction + "".join(text for text in sections if table in text.partition("\n")[0])
    said = re.search(r"\b(\d+|[Oo]ne) seeds?\b", here)
    return 0 if said is None else 1 if said[1] in ("one", "One") else int(said[1])


def quantity(expression: str) -> Figure:
    """Computes an expression over figures, seed by seed: + - * /, numbers and addresses."""
    if alone := _ADDRESS.fullmatch(expression):
        return figure(alone["source"], alone["rest"])
    addresses = {f"figure{i}": at for i, at in enumerate(_ADDRESS.finditer(expression))}
    known = {name: values_of(at["source"], at["rest"]) for name, at in addresses.items()}
    by_seed = [set(values) for values in known.values() if None not in values]
    seeds: set[int | None] = set.intersection(*by_seed) if by_seed else {None}
    if not seeds:
        raise NotMeasured(f"{expression!r}: its figures have no seed in common")
    names = iter(addresses)
    tree = ast.parse(_ADDRESS.sub(lambda _: next(names), expression), mode="eval").body

    def value(node: ast.AST, seed: int | None) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name):
                return known[name].get(seed, known[name].get(None))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left, seed), value(right, seed))
        raise ValueError(f"{expression!r}: only figures, numbers, + - * /")

    return Figure.over({seed: value(tree, seed) for seed in sorted(seeds, key=str)})


def filled(text: str) -> str:
    text = re.sub(r"\[\[(.+?)\]\]", lambda match: quantity(match[1]).text, text)
    return _ADDRESS.sub(lambda address: figure(address["source"], address["rest"]).text, text)


def shown(statement: str, learnt: Mapping[str, Any]) -> bool | None:
    """Whether what a claim says of a quantity is so; None: open."""
    said = _SHOWS.fullmatch(statement)
    if said is None or (said[1] and said[3] == ">"):
        raise ValueError(f"{statement!r}: QUANTITY > NUMBER, QUANTITY < NUMBER or NUMBER < QUANTITY < NUMBER")
    at, bound = quantity(said[2]), float(said[4])
    if at.low is None and at.seeds > 1:
        raise ValueError(f"{statement!r} compares means of {at.seeds} seeds: it needs an interval")
    if not all(_has_learnt(address, learnt) for address in _ADDRESS.finditer(said[2])):
        return None
    return at.within(bound, inf) if said[3] == ">" else at.within(float(said[1] or -inf), bound)


def _has_learnt(address: re.Match[str], learnt: Mapping[str, Any]) -> bool:
    """Whether all networks of an address have at least half of the baseline's accuracy above chance."""
    source = address["source"]
    table, row, _ = parts_of(address["rest"])
    if (known := learnt.get(f"{source}: {table}")) is None:
        return True
    at = (f"{table}: {case}: {known['accuracy']}" for case in (known["baseline"], *row.split(" - ")))
    base, *others = (
        list(values_of(source, rest).values()) if source.endswith(".jsonl") else [figure(source, rest).mean]
        for rest in at
    )
    half = (fmean(base) + known["chance"]) / 2
    return all(accuracy >= half for of_case in others for accuracy in of_case)


def verdict(claim: Mapping[str, Any]) -> str:
    """One of the five."""
    if claim.get("cannot"):
        return CANNOT
    if not claim.get("here"):
        return UNMEASURED
    all_shown = [shown(statement, claim.get("learnt", {})) for statement in claim.get("shows", ())]
    return AGAINST if False in all_shown else HELD if all_shown and None not in all_shown else OPEN


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
    texts = (claim.get("here", ""), *claim.get("shows", ()), claim.get("why", ""))
    addresses = [address for text in texts for address in _ADDRESS.finditer(text)]
    sources = dict.fromkeys(address["source"] for address in addresses)
    try:
        here, why = (filled(claim.get(name, "")) for name in ("here", "why"))
        counts = {figure(at["source"], at["rest"]).seeds for at in _ADDRESS.finditer(claim.get("here", ""))}
        seeds = " and ".join(map(str, sorted(counts - {0})))
        measured = "<br>".join(map(_measured_by, sources))
        return (
            claim["claim"],
            claim["paper"],
            here,
            seeds,
            verdict(claim),
            claim.get("cannot", why),
            measured,
        )
    except NotMeasured:
        commands = ", ".join(f"`{_command(name)}`" for name in sources if name.endswith(".jsonl"))
        why = "" if _ADDRESS.search(claim.get("why", "")) else claim.get("why", "")
        return (claim["claim"], claim["paper"], "", "", UNMEASURED, why, commands)
    except (LookupError, ValueError) as problem:
        raise type(problem)(f"{claim['claim']}: {problem.args[0]}") from problem


def papers() -> list[dict[str, Any]]:
    """What claims.yaml has."""
    read: list[dict[str, Any]] = yaml.safe_load((FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    for paper in read:
        of_all = {"learnt": paper.get("learnt", {})}
        paper["claims"] = [of_all | claim for written in paper["claims"] for claim in _each(written)]
    return read


def _each(claim: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A claim for each of the values of its $names; all but the first are repeats."""
    for i, values in enumerate(claim.get("each", [{}])):
        text = Template(json.dumps(claim)).safe_substitute(values)
        yield json.loads(text) | ({"paper": REPEAT} if i else {})


def page() -> str:
    """docs/papers.md as it should be."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield from (
        "# What the papers claim, and what was seen here, for each claim that was tried",
        "",
        "A table for each paper. Verdicts are computed from intervals, 95% over seeds (Student's t), by one",
        "rule:",
        "",
        "- **held**: the whole interval lies where the claim has it;",
        "- **did not**: the whole interval lies elsewhere;",
        f"- open: neither. Fewer than {FEWEST_SEEDS} seeds, an interval of no width, and networks that have "
        "not learnt (less",
        "  than half of the baseline's accuracy above chance) judge nothing;",
        "- *cannot be judged here*: it takes what two cores do not have;",
        "- *not measured*: the command beside it has not been run yet, or there is none.",
        "",
        "What chance has no part in, such as sizes, has no interval. The sums count neither what is not in a",
        "paper nor repeats of a claim over models and links. The linked results have machine, date and",
        "settings, and so has each line of `benchmarks/papers/records/`. Models and data are those that two",
        "cores train in minutes, mostly much smaller than the papers'. `benchmarks/papers/claims.yaml` has",
        "what each claim says of which figure.",
        "",
        "`make papers` writes this page; `make papers PAPERS=strom` first measures what is missing of a",
        "paper, and can be continued.",
    )
    for paper in papers():
        rows = [row(claim) for claim in paper["claims"]]
        counted = [cells[4].strip("*") for cells in rows if cells[1] not in (REPEAT, NOWHERE)]
        names = (name.strip("*") for name in (HELD, AGAINST, OPEN, CANNOT, UNMEASURED))
        counts = (f"{counted.count(name)} {name}" for name in names if name in counted)
        about = f"{paper['about'].strip()} Claims: {', '.join(counts)}."
        yield from ("", f"## {paper['title']}", "", about, "")
        yield f"| {' | '.join(COLUMNS)} |"
        yield f"|{' --- |' * len(COLUMNS)}"
        yield from (f"| {' | '.join(cells)} |" for cells in rows)
