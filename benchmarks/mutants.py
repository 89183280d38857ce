"""Changed programs that the tests must notice: a sample of mutants of the compressors, killed or not.

    pip install --target build/cosmic_ray cosmic-ray==8.7.0
    PYTHONPATH=build/cosmic_ray python benchmarks/mutants.py [--quick] [--write]

Cosmic Ray changes an operator, a number, a condition, a decorator or a loop of one file; the tests of its
room run until the first fails. All happens in a copy of what is committed. Can be stopped and continued:
build/mutants.jsonl has what is known.
"""

import ast
import difflib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from report import Table, load, publish, read_options
from trainings import BUILD

ROOT = Path(__file__).resolve().parent.parent
EACH, QUICK_EACH = 20, 1
SEED = 20261126
TIMEOUT_S = 400
"""Tests that take longer count as failed: a mutant may loop for ever."""
_TESTS = "tests/compressors/test_{}.py"
ROOMS = {
    "rules": (
        "compressors/rules/*.py",
        "rules chain topk chunked selection golden methods method_options method_refusals bucket_at_once "
        "policies_allocation hook_methods",
    ),
    "wire": (
        "compressors/wire/**/*.py",
        "message sealing codecs sites golomb_rice huffman chunked golden bucket_at_once method_refusals "
        "agreement hook_sites hook fuzz",
    ),
    "tau": (
        "compressors/tau/*.py",
        "chain policies policies_fits policies_allocation law golden methods method_options policies_streams "
        "hook_methods",
    ),
    "feedback": (
        "compressors/bucket/feedback.py",
        "feedback rules golden methods method_options weights bucket_at_once hook_methods hook",
    ),
}
"""The files of each, and the tests that run, the quickest first."""
INTRODUCTION = (
    "{each} mutants of each package, drawn with the seed {seed} from all places that Cosmic Ray 8.7.0 can "
    "change, with one change each. Left out are annotations, texts of errors, and `is` instead of `==`, "
    "whose changes cannot be tested. A mutant is killed if a test fails or takes more than {timeout} s. "
    "Tests were written for survivors of earlier samples, which had another seed; none for this one. "
    "`feedback` is one short file, so many of its mutants were in earlier samples, too."
)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    room: str
    file: str
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True)
class Span:
    """Lines and columns, as Python's ast counts them."""

    begin: tuple[int, int]
    end: tuple[int, int]

    def has(self, place: tuple[int, int]) -> bool:
        """Whether a place lies in it."""
        return self.begin <= place < self.end


def untested(source: str) -> list[Span]:
    """Annotations, texts, and what is raised with them."""
    nodes: list[ast.AST | None] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg() | ast.AnnAssign():
                nodes.append(node.annotation)
            case ast.FunctionDef():
                nodes.append(node.returns)
            case ast.Raise() | ast.Assert() | ast.JoinedStr():
                nodes.append(node)
            case ast.Constant(value=str()):
                nodes.append(node)
            case ast.Assign(value=ast.BinOp(op=ast.BitOr()) | ast.Subscript()):
                nodes.append(node)  # a name for a type
    return [
        Span((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))  # type: ignore[attr-defined]
        for node in nodes
        if node is not None
    ]


def operators() -> Iterator[str]:
    """Names of changes that need no arguments."""
    from cosmic_ray.plugins import get_operator, operator_names

    for name in operator_names():
        kind = name.rpartition("/")[2]
        same = kind.startswith("ReplaceComparison") and "Is" in kind.replace("Comparison", "")
        if not same and not get_operator(name).arguments():
            yield name


def mutants_of(room: str, files: Sequence[Path]) -> dict[tuple[str, tuple[int, int]], list[Mutant]]:
    """All mutants, by file and place."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator

    found: dict[tuple[str, tuple[int, int]], list[Mutant]] = {}
    for path in files:
        spans, tree, file = (
            untested(path.read_text(encoding="utf-8")),
            get_ast_from_path(path),
            path.as_posix(),
        )
        name = str(path.relative_to(ROOT))
        for operator in operators():
            change = get_operator(operator)()
            places = [start for node in ast_nodes(tree) for start, _ in change.mutation_positions(node)]
            for occurrence, place in enumerate(places):
                if not any(span.has(place) for span in spans):
                    mutant = Mutant(room, name, operator, occurrence, place[0])
                    found.setdefault((file, place), []).append(mutant)
    return found


def sample(room: str, count: int) -> list[Mutant]:
    """So many mutants of a room, each of a place of its own."""
    by_place = mutants_of(room, sorted(ROOT.glob(ROOMS[room][0])))
    rng = random.Random(f"{SEED} {room}")
    places = sorted(by_place)
    rng.shuffle(places)
    return [rng.choice(by_place[place]) for place in places[:count]]


class Copy:
    """A copy of what is committed, in which mutants are made and tested."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)

    def tests_fail(self, room: str) -> bool:
        """Whether one of a room's tests does."""
        files = [_TESTS.format(name) for name in ROOMS[room][1].split()]
        environment = os.environ | {
            "PYTHONPATH": str(self._folder / "src"),
            "NUMBA_CACHE_DIR": str(self._folder / "numba"),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=environment,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0

    def try_one(self, mutant: Mutant) -> dict[str, object]:
        """Whether a mutant is killed, and what was changed."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        path = self._folder / mutant.file
        source = path.read_text(encoding="utf-8")
        changed = mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)
        assert changed is not None
        path.write_text(changed, encoding="utf-8")
        try:
            killed = self.tests_fail(mutant.room)
        finally:
            path.write_text(source, encoding="utf-8")
        lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), lineterm="", n=0)
        diff = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        return {**asdict(mutant), "killed": killed, "diff": diff}


def main(arguments: Sequence[str]) -> int:
    options = read_options("mutants.py", __doc__.partition("\n")[0], arguments)
    before = load()
    each = QUICK_EACH if options.quick else EACH
    kept = BUILD / ("mutants-quick.jsonl" if options.quick else "mutants.jsonl")
    kept.parent.mkdir(exist_ok=True)
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    rooms = ["feedback"] if options.quick else list(ROOMS)
    wanted = [mutant for room in rooms for mutant in sample(room, each)]
    known_of = {
        mutant: next((one for one in known if one.items() >= asdict(mutant).items()), None)
        for mutant in wanted
    }
    results = []
    with tempfile.TemporaryDirectory(prefix="taugrad-mutants-") as folder:
        copy: Copy | None = None
        for number, mutant in enumerate(wanted, start=1):
            found = known_of[mutant]
            if found is None:
                if copy is None:
                    copy = Copy(Path(folder))
                    for room in {each.room for each, one in known_of.items() if one is None}:
                        if copy.tests_fail(room):
                            raise RuntimeError(f"the tests of {room} fail without any change")
                found = copy.try_one(mutant)
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
            results.append(found)
            word = "killed" if found["killed"] else "SURVIVED"
            print(f"{number} of {len(wanted)}: {mutant.file}:{mutant.line} {word}", flush=True)
    rows = []
    for room in rooms:
        of_room = [one for one in results if one["room"] == room]
        killed = sum(bool(one["killed"]) for one in of_room)
        rows.append((room, str(len(of_room)), str(killed), f"{100 * killed / len(of_room):.0f}"))
    killed = sum(bool(one["killed"]) for one in results)
    rows.append(("all", str(len(results)), str(killed), f"{100 * killed / len(results):.0f}"))
    survivors = [
        (f"{one['file']}:{one['line']}", " ".join(f"`{line}`" for line in one["diff"]))
        for one in results
        if not one["killed"]
    ]
    tables = [
        Table("Mutants killed", ("room", "mutants", "killed", "%"), rows),
        Table("Survivors", ("place", "change"), survivors),
    ]
    introduction = INTRODUCTION.format(each=each, seed=SEED, timeout=TIMEOUT_S)
    publish("mutants", options, introduction, tables, before)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
