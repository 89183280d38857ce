"""The journal: what is on the disk is known again, whatever cut it off."""

import resource
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import trials

from taugrad.platform.exit_codes import FAILED
from taugrad.search import run_search as command
from taugrad.search.journal import (
    FILE,
    Began,
    Ended,
    JournalError,
    Reported,
    SearchJournal,
    Started,
    Trained,
    WriteError,
)
from taugrad.search.objective import TrialOutcome


def report(number, epoch, spent, seconds=1.0):
    return Reported(
        number=number,
        evaluation=epoch,
        share=epoch / 2,
        value=0.5,
        wire_bytes=spent,
        spent_bytes=spent,
        seconds=seconds,
    )


EVENTS = [
    Began(identity="abc", parent_run="run"),
    Started(number=0, params={"tau": 0.1234567890123456, "compressor": "wgt"}, method="m", epochs=2),
    report(0, 1, 10),
    report(0, 2, 25, 7.5),
    Trained(number=0, fingerprint="f", seed=3, value=0.9, wire_bytes=25, run_id="r"),
    Ended(number=0, ending="full", seconds=8.0),
    Started(number=1, params={"compressor.tau": 0.2, "compressor": "wgt"}, method="m", epochs=2),
    report(1, 1, 4, 9.0),
]  # fmt: skip


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "journal.jsonl"
    SearchJournal(path).add(*EVENTS)
    return path


def test_a_journal_is_read_back(path):
    record = SearchJournal(path).record
    assert (record.identity, record.parent_run, record.seconds) == ("abc", "run", 9.0)
    (ended,), (interrupted,) = record.ended, record.interrupted
    assert ended.params == EVENTS[1].params
    assert ended.course == {1: TrialOutcome(0.5, 10), 2: TrialOutcome(0.5, 25)}
    assert [training.run_id for training in ended.trainings] == ["r"]
    assert interrupted.number == 1
    assert record.spent_bytes == 29
    assert record.trainings["f"].value == 0.9


def test_what_a_checkpoint_brings_back_is_spent_once(path):
    journal = SearchJournal(path)
    journal.add(EVENTS[6].model_copy(update={"goes_on": True}))
    assert journal.record.spent_bytes == 25 + 4
    for told, spent in ((3, 4), (6, 6), (9, 9)):  # the checkpoint is older than what was told last
        journal.add(report(1, 0, told))
        assert journal.record.spent_bytes == 25 + spent
    done = Trained(number=1, fingerprint="g", seed=3, value=0.9, wire_bytes=9, run_id="s")
    following = Reported(
        number=1, evaluation=0, share=1.0, value=0.5, wire_bytes=2, spent_bytes=11, seconds=9.0
    )
    journal.add(done, following)  # the next seed
    assert journal.record.spent_bytes == 25 + 11
    # That one is interrupted and goes on: only its own 2 bytes are told again.
    journal.add(EVENTS[6].model_copy(update={"goes_on": True}), report(1, 0, 5))
    assert journal.record.spent_bytes == SearchJournal(path).record.spent_bytes == 25 + 9 + 5


def test_a_cut_at_any_byte_loses_the_last_line_at_most(path):
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        journal = SearchJournal(path)
        kept = sum(end <= cut for end in ends)
        assert len(path.read_bytes().splitlines()) == kept
        if kept > 1:
            journal.add(report(0, 1, 11))
            assert len(SearchJournal(path).record.trials) == len(journal.record.trials)


def test_damage_elsewhere_is_refused(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], '{"event": "report"}\n', *lines[2:]]))
    with pytest.raises(JournalError, match="line 3"):
        SearchJournal(path)
    path.write_text("".join([*lines[:2], "garbage\n", *lines[2:]]))
    with pytest.raises(JournalError, match="line 3"):
        SearchJournal(path)


@contextmanager
def full_disk(nbytes):
    """A file takes so many bytes and no more, as where the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # which a library may have set to end the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler or signal.SIG_DFL)


def test_what_a_full_disk_takes_half_of_is_undone(path):
    before = path.read_bytes()
    journal = SearchJournal(path)
    later = [Ended(number=1, ending="full", seconds=10.0), Started(number=2, params={}, method="", epochs=1)]
    for half in (0, 10, 60, 120):  # in the midst of the first line, and of the second
        with full_disk(len(before) + half), pytest.raises(WriteError, match=f"{path}: File too large"):
            journal.add(*later)
        assert path.read_bytes() == before
        assert (journal.record.ended[-1].number, journal.record.seconds) == (0, 9.0)
    journal.add(*later)
    assert [trial.number for trial in SearchJournal(path).record.ended] == [0, 1]
    assert path.read_bytes().startswith(before)


def test_a_search_whose_disk_is_full_says_in_a_line_what_is_saved(start, uri, monkeypatch, capsys):
    def fit(progress, *_):
        tau = 0.01 * (1 + len(progress.record.ended))
        trial = progress.begin({"compressor.kind": "wgt", "compressor.tau": tau})
        trials.report(progress, trial.number, [0.9], 3)
        with full_disk(progress.journal.path.stat().st_size + 10):
            progress.begin({"compressor.kind": "bgt", "compressor.tau": tau})

    monkeypatch.setattr(command, "_fit", fit)
    drawn = []
    for saved in (1, 2):
        assert command.run_search(start().search, lambda _, path: drawn.append(path)) == FAILED
        said = " ".join(capsys.readouterr().out.split())
        assert f"journal.jsonl: File too large; {saved} of 30 trials are saved: make room" in said
    assert [trial.number for trial in SearchJournal(drawn[1].with_name(FILE)).record.ended] == [0, 1]


def test_a_trial_that_begins_anew_has_done_nothing_yet(path):
    journal = SearchJournal(path)
    again = {"number": 1, "params": {"compressor.tau": 0.2, "compressor": "wgt"}, "method": "m", "epochs": 2}
    journal.add(Started(**again, goes_on=True))
    trial = journal.record.trials[1]
    assert (trial.evaluation, trial.share) == (1, 0.5)
    journal.add(Started(**again, goes_on=False))
    assert (trial.evaluation, trial.share) == (0, 0.0)


def test_what_has_ended_is_counted_while_trials_begin(path):
    """As a log's own thread does."""
    record = SearchJournal(path).record

    class Begins:
        number, spent_bytes = 0, 1.0

        @property
        def ending(self):
            record.trials[len(record.trials)] = SimpleNamespace(number=1, ending=None)
            return "full"

    record.trials[0] = Begins()
    assert len(record.ended) == 1
