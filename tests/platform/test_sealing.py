"""Authenticated messages between real workers: the same bits, and nobody else's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import run_workers
from sealing_process import CHANGED, MODES, RIGHT, STEPS, WRONG

from taugrad.compressors.exchange.keys import KEY, TAG_BYTES
from taugrad.platform.preflight import check
from taugrad.platform.spec import RunSpec, SpecError

WORKERS = 3
OTHERS = WORKERS - 1


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sealing")
    script = Path(__file__).with_name("sealing_process.py")
    run_workers(script, lambda rank: (rank, WORKERS, folder), WORKERS)
    texts = [(folder / f"sealing_{rank}.json").read_text() for rank in range(WORKERS)]
    for text in texts:
        assert RIGHT not in text
        assert WRONG not in text
    return [json.loads(text) for text in texts]


@pytest.mark.parametrize("name", MODES)
def test_weights_are_the_same_bits_with_tags(ranks: list[dict[str, Any]], name: str) -> None:
    plain, tagged = ranks[0]["alike"][name]
    assert plain["weights"] == tagged["weights"]
    for other in ranks[1:]:
        assert other["alike"][name][1]["weights"] == tagged["weights"]


@pytest.mark.parametrize("name", MODES)
def test_tags_are_in_the_ledger_and_change_nothing_else_in_it(ranks: list[dict[str, Any]], name: str) -> None:
    plain, tagged = (each["totals"] for each in ranks[0]["alike"][name])
    more = {key: tagged[key] - plain[key] for key in ("wire_bytes", "received_bytes")}
    for key in ("sent", "paper_bits", "elements", "messages"):
        assert tagged[key] == plain[key], key
    assert more["wire_bytes"] > 0
    if name == "exact":
        assert more["wire_bytes"] == WORKERS * TAG_BYTES * STEPS
        assert more["received_bytes"] == OTHERS * more["wire_bytes"]
    if name in ("sharded", "weights, sharded"):
        # A tag behind each head, size and message; parts for others, then sums for all: sizes once.
        heads, sizes, parts, sums = 2 * WORKERS, WORKERS * OTHERS, WORKERS * OTHERS, WORKERS
        assert more["wire_bytes"] == STEPS * TAG_BYTES * (heads + sizes + parts + sums)
        received = heads * OTHERS + sizes + parts + sums * OTHERS
        assert more["received_bytes"] == STEPS * TAG_BYTES * received
    if name == "weights":
        assert more["wire_bytes"] == STEPS * TAG_BYTES * 2 * WORKERS


@pytest.mark.parametrize("name", ["sharded", "server", "weights", "weights, hierarchical", "hierarchical"])
def test_links_add_up_to_what_was_received(ranks: list[dict[str, Any]], name: str) -> None:
    for outcome in ranks[0]["alike"][name]:
        assert np.sum(outcome["links"]) == outcome["totals"]["received_bytes"]


@pytest.mark.parametrize("mode", ["exact", "sharded"])
def test_another_key_is_refused_on_every_rank(ranks: list[dict[str, Any]], mode: str) -> None:
    said = {tuple(rank["keys"][f"{mode}, wrong"]) for rank in ranks}
    assert said == {
        (
            "WorkersDisagree",
            "the workers do not agree: they do not have the same key; give all of them the same "
            "TAUGRAD_KEY_FILE, or TAUGRAD_KEY",
        )
    }


@pytest.mark.parametrize("mode", ["exact", "sharded"])
def test_a_missing_key_is_named_on_every_rank(ranks: list[dict[str, Any]], mode: str) -> None:
    said = {tuple(rank["keys"][f"{mode}, missing"]) for rank in ranks}
    assert said == {
        (
            "KeyProblem",
            "sync.authenticated on worker 1: there is no key; set TAUGRAD_KEY_FILE to a file that holds one, "
            "or TAUGRAD_KEY, for all workers",
        )
    }


@pytest.mark.parametrize("change", ["flipped", "repeated"])
@pytest.mark.parametrize(("mode", "about"), CHANGED)
def test_what_was_changed_on_its_way_is_refused_by_who_gets_it(
    ranks: list[dict[str, Any]], mode: str, about: int | None, change: str
) -> None:
    errors = [rank["changed"][f"{mode}, {about}, {change}"] for rank in ranks]
    refused = [
        error for error in errors if error[0] == "CorruptMessage" and "worker 1 is not authentic" in error[1]
    ]
    assert errors[0] in refused
    assert all(error[0] for error in errors)  # worker 1 cannot go on without the others


BASE = {"compressor": "wgt(0.01)", "workers": {"count": 2}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"sync": {"mode": "allgather"}, "compressor": "none"},
            "compressor.kind = none: it goes through torch",
        ),
        ({"sync": {"mode": "allgather"}, "compressor": "powersgd(rank=2)"}, "compressor.kind = powersgd"),
        ({"sync": {"mode": "weights", "pattern": "ring"}}, "sync.pattern = ring: messages that hops pass on"),
    ],
)
def test_what_has_no_messages_of_ours_is_refused(fields: dict[str, Any], said: str) -> None:
    sync = fields["sync"] | {"authenticated": True}
    with pytest.raises(ValueError, match=said):
        RunSpec.model_validate(BASE | fields | {"sync": sync})
    RunSpec.model_validate(BASE | fields)


@pytest.mark.parametrize("mode", ["ring", "hybrid", "async"])
def test_other_modes_have_no_such_field(mode: str) -> None:
    with pytest.raises(ValueError, match="authenticated"):
        RunSpec.model_validate(BASE | {"sync": {"mode": mode, "authenticated": True}})


def test_simulated_workers_send_nothing() -> None:
    sync = {"mode": "simulated", "of": {"mode": "sharded", "authenticated": True}}
    with pytest.raises(ValueError, match="a simulation sends nothing"):
        RunSpec.model_validate(BASE | {"sync": sync})


def test_the_key_is_asked_for_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec.model_validate(BASE | {"sync": {"mode": "sharded", "authenticated": True}})
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(SpecError, match=r"^here: sync\.authenticated = true: there is no key; set"):
        check(spec, "here", local=True)
    monkeypatch.setenv(KEY, "too short")
    with pytest.raises(SpecError, match=r"sync\.authenticated") as refused:
        check(spec, "here", local=True)
    assert "too short" not in str(refused.value)


def test_tags_define_no_other_computation_and_the_key_is_no_field() -> None:
    specs = [
        RunSpec.model_validate(BASE | {"sync": {"mode": "sharded", "authenticated": tags}})
        for tags in (False, True)
    ]
    assert specs[0].fingerprint() == specs[1].fingerprint()
    assert not [name for name in specs[1].flat() if "key" in name]


def test_a_worker_by_itself_needs_nobody_s_tags(tmp_path: Path) -> None:
    script = Path(__file__).with_name("sealing_process.py")
    run_workers(script, lambda rank: (rank, 1, tmp_path), 1)
    found = json.loads((tmp_path / "sealing_0.json").read_text())
    assert found["alone"]["plain"] == found["alone"]["tagged"]
