"""Authenticated messages between real workers: the same bits, and nobody else's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from authenticated_process import MODES, RIGHT, WRONG
from forked import run_workers

from taugrad.compressors.exchange.keys import KEY
from taugrad.platform.preflight import check
from taugrad.platform.spec import RunSpec, SpecError

WORKERS = 3


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("authenticated")
    script = Path(__file__).with_name("authenticated_process.py")
    run_workers(script, lambda rank: (rank, WORKERS, folder), WORKERS)
    texts = [(folder / f"authenticated_{rank}.json").read_text() for rank in range(WORKERS)]
    for text in texts:
        assert RIGHT not in text
        assert WRONG not in text
    return [json.loads(text) for text in texts]


@pytest.mark.parametrize("name", MODES)
def test_weights_are_the_same_bits_encrypted(ranks: list[dict[str, Any]], name: str) -> None:
    plain, encrypted = ranks[0]["alike"][name]
    assert plain["weights"] == encrypted["weights"]
    for other in ranks[1:]:
        assert other["alike"][name][1]["weights"] == encrypted["weights"]


@pytest.mark.parametrize("name", MODES)
def test_encryption_changes_nothing_in_the_ledger(ranks: list[dict[str, Any]], name: str) -> None:
    plain, encrypted = ranks[0]["alike"][name]
    assert plain["totals"] == encrypted["totals"]


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


BASE = {"compressor": "wgt(0.01)", "workers": {"count": 2}}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"sync": {"mode": "allgather"}, "compressor": "none"},
            "compressor.kind = none: it goes through torch",
        ),
        ({"sync": {"mode": "allgather"}, "compressor": "powersgd(rank=2)"}, "compressor.kind = powersgd"),
    ],
)
def test_what_has_no_messages_of_ours_is_refused(fields: dict[str, Any], said: str) -> None:
    sync = fields["sync"] | {"authenticated": True}
    with pytest.raises(ValueError, match=said):
        RunSpec.model_validate(BASE | fields | {"sync": sync})
    RunSpec.model_validate(BASE | fields)


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


def test_encryption_defines_no_other_computation_and_the_key_is_no_field() -> None:
    specs = [
        RunSpec.model_validate(BASE | {"sync": {"mode": "sharded", "authenticated": tags}})
        for tags in (False, True)
    ]
    assert specs[0].fingerprint() == specs[1].fingerprint()
    assert not [name for name in specs[1].flat() if "key" in name]


def test_a_worker_by_itself_needs_nobody_s_key(tmp_path: Path) -> None:
    script = Path(__file__).with_name("authenticated_process.py")
    run_workers(script, lambda rank: (rank, 1, tmp_path), 1)
    found = json.loads((tmp_path / "authenticated_0.json").read_text())
    assert found["alone"]["plain"] == found["alone"]["tagged"]
