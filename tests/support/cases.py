"""Many cases in one test, each of them a subtest. `--case TEXT` runs some of them alone.

`in_turn` stands where `pytest.mark.parametrize` would stand if every case had to be a test of its own. Cases
share the test's fixtures, so it is for tests that leave nothing behind in them.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

only: str | None = None
"""What a case's name must contain to be run; see conftest.py."""
everything = False
"""Whether long tests run, and with them the cases of a table that others like them stand for."""

Call = tuple[str, Callable[[], object]]
"""A case's name, and what runs it."""


def run_all(calls: Iterable[Call], subtests: pytest.Subtests) -> None:
    """Runs every case as a subtest.

    A case that skips itself is a failure: nobody would see that it did not run.
    """
    count = left_out = 0
    for name, call in calls:
        if only is not None and only not in name:
            left_out += 1
            continue
        count += 1
        with subtests.test(name):
            try:
                call()
            except pytest.skip.Exception as error:
                raise AssertionError(f"the case skips itself: {error}") from None
    if left_out and not count:
        pytest.skip(f"no case is named {only}")
    assert count, "there are no cases"


def _name_of(value: object) -> str:
    plain = getattr(value, "name", None) or getattr(value, "__name__", None)
    return plain if isinstance(plain, str) else repr(value)[:80]


def in_turn(
    names: str | Sequence[str], values: Iterable[Any], ids: Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test for every value of its parameters, as one test; several of them give all combinations.

    Args:
        names: the parameters, as `pytest.mark.parametrize` takes them.
        values: a value for each case, or a tuple of values where there are several parameters.
        ids: what to call the cases in a failure; by default their values.
    """
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [(value,) if len(parameters) == 1 else tuple(value) for value in values]
    named = [", ".join(map(_name_of, row)) for row in rows] if ids is None else list(ids)
    cases = [(name, dict(zip(parameters, row, strict=True))) for name, row in zip(named, rows, strict=True)]

    def fold(test: Callable[..., None]) -> Callable[..., None]:
        within, function = getattr(test, "_in_turn", ([], test))
        dimensions = [cases, *within]
        taken = {name for dimension in dimensions for name in dimension[0][1]}
        signature = inspect.signature(function)
        assert taken <= set(signature.parameters), f"{function.__name__} takes no {taken}"

        @functools.wraps(function, updated=())
        def folded(subtests: pytest.Subtests, **fixtures: Any) -> None:
            calls = (
                (
                    "; ".join(name for name, _ in case),
                    functools.partial(
                        function, **fixtures, **{k: v for _, row in case for k, v in row.items()}
                    ),
                )
                for case in itertools.product(*dimensions)
            )
            run_all(calls, subtests)

        left = [parameter for name, parameter in signature.parameters.items() if name not in taken]
        left.append(inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY))
        folded.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        folded.pytestmark = list(getattr(test, "pytestmark", []))  # type: ignore[attr-defined]
        folded._in_turn = (dimensions, function)  # type: ignore[attr-defined]
        return folded

    return fold
