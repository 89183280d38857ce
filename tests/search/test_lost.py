"""Trials that Ray Tune ends without a word: what becomes of them, and what the search then says."""

from collections.abc import Callable

from trials import report, told

from taugrad.search.lost import MOST, run_all
from taugrad.search.progress import Progress

TAUS = [0.01, 0.02, 0.03]


def tune(progress: Progress, loses: Callable[[int, int], bool]) -> tuple[Callable[[], None], list[list[int]]]:
    """A stand-in for a Tune run; `loses` tells of a trial and a run whether no end is heard of."""
    runs: list[list[int]] = []

    def run() -> None:
        waiting = [trial.params["compressor.tau"] for trial in progress.record.interrupted]
        done = {trial.params["compressor.tau"] for trial in progress.record.ended}
        runs.append([])
        for tau in [*waiting, *(tau for tau in TAUS if tau not in {*waiting, *done})]:
            number = progress.begin({"compressor.kind": "wgt", "compressor.tau": tau}).number
            runs[-1].append(number)
            if not loses(number, len(runs)):
                progress.end(number, "failed", "told")

    return run, runs


def test_a_trial_without_an_end_is_run_again(start):
    progress = start("--search.trials", "3")
    run, runs = tune(progress, lambda number, attempt: number == 1 and attempt == 1)
    run_all(progress, run, lambda: {"print": "run"})
    assert runs == [[0, 1, 2], [1]]
    assert [trial.reason for trial in progress.record.ended] == ["told"] * 3
    assert (progress.left, progress.running, progress.unfinished) == (0, {}, {"print": "run"})


def test_a_trial_that_is_lost_again_and_again_has_failed(start):
    progress = start("--search.trials", "3")
    run, runs = tune(progress, lambda number, attempt: number == 1)
    run_all(progress, run, dict)
    assert runs == [[0, 1, 2], *[[1]] * (MOST - 1)]
    assert "never told how it ended" in progress.record.trials[1].reason
    assert [trial.ending for trial in start("--search.trials", "3").record.ended] == ["failed"] * 3


def test_a_search_that_did_not_try_all_it_should_says_so_and_fails(start):
    progress = start("--search.trials", "4", "--search.name", "mine")
    run, runs = tune(progress, lambda *_: False)
    run_all(progress, run, dict)
    assert runs == [[0, 1, 2], []]  # the second did nothing, and a third would do no more
    progress.give_up(0, "")
    report(progress, 2, [0.9], 1)
    code, text = told(progress)
    assert code == 1
    assert "search mine: ended after 3 of 4 trials; run the same command again to continue" in text
    assert "Train point 1, which sends least within 0.5 points of the most accurate one: " in text
    assert text.count("find.yaml --search.name mine --pick 1") == 1
