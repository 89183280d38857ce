"""What a search has done and has left to do, from its journal alone; what it leaves in files, and says."""

import csv
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from trials import report, told

from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.allowing import allowed
from taugrad.platform.spec.reading import read_spec
from taugrad.platform.tracking import names
from taugrad.search import run_search, tracked
from taugrad.search.console import LiveSearch
from taugrad.search.outputs import folder_of, front_csv, picked, write_outputs
from taugrad.search.progress import SearchProgress
from taugrad.search.sampling import make_sampler
from taugrad.search.trial import Task
from taugrad.search.tune import MOST, run_all


def point(tau: float, kind: str = "wgt") -> dict:
    return {"compressor.kind": kind, "compressor.tau": tau}


def test_an_interrupted_trial_keeps_its_number_and_others_follow(start):
    progress = start()
    first = progress.begin(point(0.01))
    second = progress.begin(point(0.02))
    report(progress, first.number, [0.9], 1)
    again = start()
    assert [trial.number for trial in again.record.interrupted] == [second.number]
    assert again.begin(point(0.5)).number == 2
    assert again.begin(point(0.02)).number == second.number
    assert again.left == 29


def test_what_failed_is_tried_again_when_asked(start):
    progress = start()
    failed = progress.begin(point(0.02))
    progress.end(failed.number, "failed", "why")
    again = start("--search.retry_failed", "true")
    assert again.left == 29
    again.record.reopen(seeds=1, failed=True)
    assert again.left == 30
    assert again.begin(point(0.02)).number == failed.number
    report(again, failed.number, [0.9], 1)
    assert [(trial.ending, trial.reason) for trial in start().record.ended] == [("full", "")]


def test_what_is_trained_is_not_trained_again(start):
    progress = start()
    task = progress.begin(point(0.01))
    (fingerprint,) = [spec.fingerprint() for spec in progress.search.seeds(progress.search.spec(point(0.01)))]
    report(progress, task.number, [0.9], 5, fingerprint=fingerprint, run_id="r")
    known = start().begin(point(0.01)).known
    assert {key: run.run_id for key, run in known.items()} == {fingerprint: "r"}


def test_a_trial_publishes_no_weights(start):
    task = start("--publish.path", "weights").begin(point(0.01))
    assert not RunSpec.model_validate_json(task.specs[0]).publish.path


def test_points_and_baseline_get_the_seeds_that_they_lack(start):
    progress = start("--search.baseline", "true")
    prints = [spec.fingerprint() for spec in progress.search.seeds(progress.search.spec(point(0.01)))]
    report(progress, progress.begin(point(0.01)).number, [0.9], 1, fingerprint=prints[0])
    report(progress, progress.begin_baseline().number, [0.9], 1)
    again = start("--search.seeds", "2")
    again.record.reopen(seeds=2, failed=False)
    assert again.baseline is None
    task = again.begin(point(0.01))
    assert (task.number, len(task.specs), list(task.known)) == (0, 2, prints)


def test_budgets_count_every_start(start):
    progress = start("--search.wire_gb", "0.005", "--search.trials", "3")
    report(progress, progress.begin(point(0.01)).number, [0.9], 3)
    assert (progress.exhausted(), progress.left) == ("", 2)
    progress = start("--search.wire_gb", "0.005", "--search.trials", "3")
    report(progress, progress.begin(point(0.02)).number, [0.9], 2)
    assert progress.exhausted() == "search.wire_gb = 0.005"
    assert start("--search.wire_gb", "0.006").exhausted() == ""
    seconds = start().record.seconds
    assert seconds > 0
    assert start("--search.minutes", str(seconds / 120)).exhausted().startswith("search.minutes")


def test_the_sampler_knows_what_earlier_starts_found_and_begins_where_they_broke_off(start):
    progress = start()
    report(progress, progress.begin(point(0.01)).number, [0.9], 3)
    broken = progress.begin(point(0.05))
    progress.end(broken.number, "failed", "why")
    progress.begin(point(0.033, "bgt"))
    again = start()
    sampler = make_sampler(again, again.objective, concurrency=2)
    seen = {
        trial.params["compressor.tau"]: trial.values for trial in sampler._ot_study.trials if trial.values
    }
    assert seen[0.01] == [0.9, pytest.approx(6.4771, abs=1e-3)]
    assert seen[0.05] == [0.0, 12.0]
    first = Task.model_validate_json(sampler.suggest("a")["task"])
    assert first.number == 2
    assert "bgt" in first.specs[0]
    second = Task.model_validate_json(sampler.suggest("b")["task"])
    assert second.number == 3
    sampler.on_trial_complete("a", {"objective_1": 0.5, "objective_2": 4.0})


def test_a_random_search_that_goes_on_draws_what_it_would_have_drawn(start):
    whole = start("--search.name", "whole", "--search.sampler", "random")
    sampler = make_sampler(whole, whole.objective, concurrency=9)
    drawn = [sampler.suggest(name)["task"] for name in "abcde"]
    specs = [Task.model_validate_json(task).specs[0] for task in drawn]
    assert len(set(specs)) == 5

    begun = start("--search.sampler", "random")
    sampler = make_sampler(begun, begun.objective, concurrency=9)
    first, _ = (Task.model_validate_json(sampler.suggest(name)["task"]) for name in "ab")
    report(begun, first.number, [0.5], 1)
    again = start("--search.sampler", "random")
    sampler = make_sampler(again, again.objective, concurrency=9)
    following = [Task.model_validate_json(sampler.suggest(name)["task"]) for name in "cdef"]
    assert [task.number for task in following] == [1, 2, 3, 4]
    assert [task.specs[0] for task in (first, *following)] == specs


def test_the_files_say_what_was_found_and_each_point_is_a_spec(start):
    progress = start()
    report(progress, progress.begin_baseline().number, [0.97], 100)
    report(progress, progress.begin(point(0.01)).number, [0.95], 10)
    report(progress, progress.begin(point(0.02, "bgt")).number, [0.9], 2)
    report(progress, progress.begin(point(0.03)).number, [0.8], 20)
    failed = progress.begin(point(0.04))
    progress.end(failed.number, "failed", "a, b")
    folder = folder_of("find", "taugrad")
    mine = folder / "front" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.touch()
    files = write_outputs(progress, folder)
    assert mine.exists()
    assert [path.name for path in files] == ["front.csv", "trials.csv", "1.yaml", "2.yaml"]
    with files[0].open() as file:
        front = list(csv.DictReader(file))
    assert [row["point"] for row in front] == ["0", "1", "2"]
    assert [row["trial"] for row in front] == ["baseline", "1", "0"]
    assert [float(row["times_smaller"]) for row in front] == [1, 50, 10]
    assert [row["compressor.tau"] for row in front] == ["", "0.02", "0.01"]
    with files[1].open() as file:
        trials = list(csv.DictReader(file))
    assert [row["ending"] for row in trials] == ["full", "full", "full", "failed"]
    assert trials[3]["reason"] == "a, b"

    spec_file = Path("find.yaml")
    source, spec = picked(spec_file, 1, ["--training.epochs", "7"])
    assert source == str(files[2])
    assert (str(spec.compressor), spec.training.epochs) == ("bgt(tau=0.02)", 7)
    wanted = progress.search.spec(point(0.01))
    assert read_spec(files[3]).fingerprint() == wanted.fingerprint()
    with pytest.raises(SpecError, match="--pick 3: the front of search find has points 1 to 2"):
        picked(spec_file, 3, [])


# Trials that Ray Tune ends without a word


TAUS = [0.01, 0.02, 0.03]


def tune(
    progress: SearchProgress, loses: Callable[[int, int], bool]
) -> tuple[Callable[[], None], list[list[int]]]:
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


def test_a_trial_that_is_lost_again_and_again_has_failed(start):
    progress = start("--search.trials", "3")
    run, runs = tune(progress, lambda number, attempt: number == 1)
    run_all(progress, run, dict)
    assert runs == [[0, 1, 2], *[[1]] * (MOST - 1)]
    assert "never told how it ended" in progress.record.trials[1].reason
    assert [trial.ending for trial in start("--search.trials", "3").record.ended] == ["failed"] * 3


def test_a_store_that_takes_no_training_ends_the_search_and_spends_no_trial(start):
    progress = start("--search.trials", "3")
    runs = []

    def run() -> None:
        runs.append(progress.begin(point(0.01)).number)
        progress.stop(runs[-1], "no store")

    run_all(progress, run, dict)
    assert runs == [0]
    assert progress.incomplete
    again = start("--search.trials", "3")
    assert again.left == 3
    assert again.begin(point(0.01)).number == 0


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


def test_the_proposed_command_works_where_code_is_named(start, tmp_path):
    (tmp_path / "find.yaml").write_text((tmp_path / "find.yaml").read_text() + "extensions: [json]\n")
    with allowed(given=True):
        progress = start()
        report(progress, progress.begin(point(0.01)).number, [0.9], 1)
        assert "--pick 1 --allow-custom" in told(progress)[1]
        text = " ".join(told(start("--search.evaluate", "mine:train"))[1].split())
    assert "--pick" not in text
    assert text.count("front/1.yaml: train it by mine:train") == 1


def test_a_search_whose_front_cannot_be_drawn_ends_all_the_same(start, monkeypatch):
    logged = []
    monkeypatch.setattr(run_search, "tag_endings", lambda *_: None)
    monkeypatch.setattr(
        run_search, "finish_parent", lambda _, __, files, status: logged.extend([*files, status])
    )
    progress = start()
    report(progress, progress.begin(point(0.01)).number, [0.9], 0)

    def draw(*_):
        raise ValueError("no bytes")

    run_search._leave(progress, None, draw, "FINISHED")
    assert [path.name for path in logged[:-1]] == ["front.csv", "trials.csv", "1.yaml"]
    assert logged[-1] == "FINISHED"


def test_runs_of_a_users_own_below_a_search_are_left_alone(start, monkeypatch):
    progress, tagged = start(), []
    report(progress, progress.begin(point(0.01)).number, [0.9], 1)
    children = [
        SimpleNamespace(
            info=SimpleNamespace(run_id=run_id, status="FINISHED"),
            data=SimpleNamespace(tags={names.TAG_TRIAL: trial} if trial else {}),
        )
        for run_id, trial in (("mine", ""), ("run0", "0"))
    ]
    monkeypatch.setattr(tracked, "_children", lambda *_: children)
    tracked.tag_endings(SimpleNamespace(set_tag=lambda *tag: tagged.append(tag)), progress.journal)
    assert tagged == [("run0", names.TAG_ENDING, "full")]


def test_the_ratio_is_that_of_the_accuracy_beside_it(start):
    progress = start()
    report(progress, progress.begin(point(0.01)).number, [0.9, 0.8], 10)
    (row,) = csv.DictReader(front_csv(progress).splitlines())
    assert float(row["accuracy_percent"]) == pytest.approx(85)
    assert float(row["accuracy_percent_per_wire_gb"]) == pytest.approx(85 / 0.01)


def test_what_a_training_has_to_say_is_shown_once(start):
    progress = start()
    progress.begin(point(0.01))
    fields = {"evaluation": 1, "share": 0.5, "value": 0.9, "wire_bytes": 1, "spent_bytes": 1, "full": False}
    console = Console(file=StringIO(), width=200)
    live = LiveSearch(console, progress)
    for notices in (["metrics wait"], []):
        progress.report(0, {**fields, "notices": notices})
        live.show(progress)
    assert console.file.getvalue().count("trial 0: metrics wait\n") == 1
