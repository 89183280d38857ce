"""The helper that runs many cases in one test must run them all, and say which failed."""

import inspect
from pathlib import Path

import pytest
from cases import in_turn, run_all
from needs import REQUIRED, missing


def test_all_combinations_run_with_the_fixtures() -> None:
    seen = []

    @in_turn("a", [1, 2])
    @in_turn(("b", "c"), [(3, 4), (5, 6)])
    def folded(a: int, b: int, c: int, fixture: str) -> None:
        seen.append((a, b, c, fixture))

    assert list(inspect.signature(folded).parameters) == ["fixture"]
    folded(fixture="x")
    assert seen == [(1, 3, 4, "x"), (1, 5, 6, "x"), (2, 3, 4, "x"), (2, 5, 6, "x")]


def test_the_case_that_failed_is_named_and_the_others_run() -> None:
    seen = []

    @in_turn("n", [0, 1, 2, 3], ids=["zero", "one", "two", "three"])
    def folded(n: int) -> None:
        seen.append(n)
        assert n % 2 == 0, f"{n} is odd"

    with pytest.raises(AssertionError, match="1 is odd") as raised:
        folded()
    assert seen == [0, 1, 2, 3]
    first, second = raised.value.__notes__
    assert first == "in the case one (2 of 4 cases failed)"
    assert second.startswith("failed too: three: AssertionError: 3 is odd")


def test_what_pytest_itself_raises_is_a_failure_too() -> None:
    def does_not_raise() -> None:
        with pytest.raises(ValueError, match="never"):
            pass

    with pytest.raises(pytest.fail.Exception) as raised:
        run_all([("fine", lambda: None), ("does not raise", does_not_raise)])
    assert raised.value.__notes__ == ["in the case does not raise (1 of 2 cases failed)"]
    with pytest.raises(AssertionError, match="the case this skips itself: not here"):
        run_all([("this", lambda: pytest.skip("not here"))])


def test_what_is_missing_fails_where_all_tests_have_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs g"):
        missing("needs g++")
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs g"):
        missing("needs g++")
    ci = Path(__file__).parents[1] / ".ci" / "run"
    assert f"export {REQUIRED}=1\n" in ci.read_text()
