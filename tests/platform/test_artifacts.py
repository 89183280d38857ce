"""Artifacts of a run: what went over each link, and timelines as Perfetto and chrome://tracing read them."""

import csv
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.compressors.spans import Span
from taugrad.platform.launching.driver.launch import _keep
from taugrad.platform.launching.run_folder import RunFolder
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.ledger import Links
from taugrad.platform.tracking.store import open_client, start_run
from taugrad.platform.tracking.timeline import Timeline

SPANS = st.builds(
    lambda name, lane, began, length, about: Span(name, lane, began, began + length, about),
    st.sampled_from(["backward", "exchange", "wait"]),
    st.sampled_from(["compute", "wire"]),
    st.floats(1e9, 1e9 + 10),
    st.floats(1e-6, 5),
    st.sampled_from(["", "bucket 1"]),
)
WORKERS = st.lists(st.lists(SPANS, min_size=1, max_size=12), min_size=1, max_size=3)


@given(WORKERS)
def test_a_timeline_comes_back_from_its_text(workers):
    timeline = Timeline.of(workers)
    back = Timeline.from_json(timeline.to_json())
    assert len(back.workers) == len(workers)
    start = min(span.began for spans in workers for span in spans)
    for spans, worker in zip(workers, back.workers, strict=True):
        assert len(worker) == len(spans)
        expected = sorted((s.began - start, s.ended - start, s.name, s.lane, s.about) for s in spans)
        for span, (began, ended, *words) in zip(sorted(worker, key=_in_order), expected, strict=True):
            assert (span.began, span.ended) == pytest.approx((began, ended), abs=2e-6)
            assert [span.name, span.lane, span.about] == words


def _in_order(span: Span) -> tuple[float, float, str, str, str]:
    return span.began, span.ended, span.name, span.lane, span.about


@given(WORKERS)
def test_a_trace_is_what_viewers_ask_for(workers):
    """Trace Event Format: complete events, whose threads have names; in a thread they nest, or are apart."""
    trace = json.loads(Timeline.of(workers).to_json())
    assert trace["displayTimeUnit"] == "ms"
    threads = defaultdict(list)
    named = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            named[event["name"], event["pid"], event["tid"]] = event["args"]
        else:
            assert event["ph"] == "X"
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for rank in range(len(workers)):
        assert named["process_name", rank, 0] == {"name": f"worker {rank}"}
        assert named["process_sort_index", rank, 0] == {"sort_index": rank}
    for (rank, thread), events in threads.items():
        assert named["thread_name", rank, thread]["name"].startswith(("computing", "network"))
        open_until: list[float] = []
        for began, ended in sorted(events, key=lambda event: (event[0], -event[1])):
            while open_until and open_until[-1] <= began + 1e-4:  # a tenth of a nanosecond
                open_until.pop()
            assert not open_until or ended <= open_until[-1] + 1e-4
            open_until.append(ended)


def test_steps_begin_when_the_first_worker_does():
    first = [Span("step", "compute", 5.0, 6.0, "11"), Span("step", "compute", 6.0, 7.0, "12")]
    second = [Span("step", "compute", 5.5, 5.9, "11"), Span("step", "compute", 5.9, 7.0, "12")]
    steps = Timeline.of([first, second]).steps
    assert [number for number, _ in steps] == ["11", "12"]
    assert [began for _, began in steps] == pytest.approx([0.0, 0.9])
    assert all(one[1] < other[1] for one, other in pairwise(steps))


@pytest.mark.parametrize("text", ["[]", "{}", '{"traceEvents": [{"ph": "X"}]}', "nothing"])
def test_another_text_is_no_timeline(text):
    with pytest.raises(ValueError, match=r"timeline|Expecting"):
        Timeline.from_json(text)


def test_links_as_text_have_a_row_for_each_ordered_pair_of_workers():
    messages, nbytes = np.arange(9).reshape(3, 3), 10**12 * np.arange(9).reshape(3, 3)
    rows = list(csv.DictReader(Links(messages, nbytes).to_csv().splitlines()))
    assert list(rows[0]) == ["from", "to", "messages", "bytes"]
    results = {(int(row["from"]), int(row["to"])): (int(row["messages"]), int(row["bytes"])) for row in rows}
    assert results == {
        (i, j): (3 * i + j, 10**12 * (3 * i + j)) for i in range(3) for j in range(3) if i != j
    }
    assert len(rows) == len(results)


def test_a_text_becomes_an_artifact_or_a_file_beside_the_checkpoints(tmp_path, new_store):
    client = open_client(new_store(tmp_path))
    run_id = start_run(client, RunSpec(experiment="links"))
    folder = RunFolder.at(str(tmp_path / "storage"), run_id)
    artifacts = Path(client.get_run(run_id).info.artifact_uri.removeprefix("file://"))
    (artifacts / "links.csv").mkdir(parents=True)  # a folder stands where the file should be
    (notice,) = _keep(client, {"links.csv": "from,to\n", "timeline.json": "[]"}, folder)
    assert Path(client.download_artifacts(run_id, "timeline.json")).read_text() == "[]"
    path = tmp_path / "storage" / run_id / "links.csv"
    assert path.read_text() == "from,to\n"
    assert [file.name for file in path.parent.iterdir()] == ["links.csv"]
    assert notice.startswith("MLflow did not take links.csv (")
    assert notice.endswith(f"it is {path}")
