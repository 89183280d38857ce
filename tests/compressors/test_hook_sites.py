"""The hook in real DDP over gloo, with workers at several sites; see test_hook.py."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import in_turn

Results = list[dict[str, Any]]

LAYOUTS = {"2+2": [[0, 1], [2, 3]], "1+3": [[0], [1, 2, 3]], "each alone": [[0], [1], [2], [3]]}
CASES = [("many", "growing"), ("one", "growing"), ("many", "refused")]


@pytest.fixture(scope="module")
def four(scenarios: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each of four workers brought back."""
    script = Path(__file__).with_name("site_scenarios.py")
    return scenarios.run_group(script, "sites-4", 4, tmp_path_factory.mktemp("sites"))


every_layout = in_turn("layout", LAYOUTS)
every_case = in_turn("buckets, line", CASES)


@every_layout
@every_case
def test_between_sites_every_bit_is_that_of_exact(
    layout: str, buckets: str, line: str, four: Results
) -> None:
    for worker in four:
        found = worker["between_sites"][layout, buckets, line]
        exact = worker["between_sites"]["exact", buckets, line]
        assert found["digests"] == exact["digests"]
        assert found["skipped"] == exact["skipped"] == ([2] if line == "refused" else [])
        for parameter, residual in exact["residuals"].items():
            assert torch.equal(found["residuals"][parameter], residual)
        assert {**found["totals"], "wire_bytes": 0} == {**exact["totals"], "wire_bytes": 0}


@every_layout
@every_case
def test_the_ledger_by_link_is_what_the_carrier_was_handed(
    layout: str, buckets: str, line: str, four: Results
) -> None:
    everybody = [each["between_sites"][layout, buckets, line] for each in four]
    handed, sends = (torch.stack([each[what] for each in everybody]).sum(0) for what in ("handed", "sends"))
    for found in everybody:
        assert torch.equal(found["state"]["link_bytes"], handed)
        assert int(handed.sum()) == found["totals"]["received_bytes"]
        assert int(found["state"]["link_messages"].sum()) == found["totals"]["messages"]
        assert torch.equal(found["state"]["link_messages"], sends)


@every_layout
def test_bytes_over_slow_links_are_by_the_formula(layout: str, four: Results) -> None:
    """S - 1 times each message; wire bytes once more for each site where somebody hands it on."""
    sites = LAYOUTS[layout]
    site_of = {rank: number for number, site in enumerate(sites) for rank in site}
    found = four[0]["between_sites"][layout, "many", "growing"]
    exact = four[0]["between_sites"]["exact", "many", "growing"]["totals"]["wire_bytes"]
    crossing = [(i, j) for i in site_of for j in site_of if site_of[i] != site_of[j]]
    over = {
        what: sum(int(found["state"][what][link]) for link in crossing)
        for what in found["state"]
        if "link" in what
    }
    assert over["link_bytes"] == (len(sites) - 1) * exact
    assert 3 * over["link_messages"] == (len(sites) - 1) * found["totals"]["messages"]
    expected = {
        "each alone": exact,
        "2+2": 2 * exact,
        # Worker 0's alone are handed on, by worker 1 to 2 and 3.
        "1+3": exact + int(found["state"]["link_bytes"][0, 1]),
    }
    assert found["totals"]["wire_bytes"] == expected[layout]


def test_by_default_the_workers_of_a_host_are_a_site(four: Results) -> None:
    for worker in four:
        assert worker["by_host"]["sites"] == "[[0, 1], [2, 3]]"
        assert worker["by_host"]["digests"] == four[0]["by_host"]["digests"]


def test_workers_that_have_other_sites_all_say_so(four: Results) -> None:
    for worker in four:
        others, none = (worker["sites_that_differ"][way] for way in ("others", "none"))
        assert others["text"].endswith(
            "rank 0: sites = [[0, 1], [2, 3]], ranks 1, 2, 3: sites = [[0, 2], [1, 3]]"
        )
        assert none["text"].endswith("ranks 1, 2, 3: sites = by host")
        assert others["untouched"]
        assert none["untouched"]


def test_a_run_that_goes_on_ends_the_same(four: Results) -> None:
    for worker in four:
        stopped, never = worker["going_on"]["stopped"], worker["going_on"]["never"]
        assert stopped["digests"] == never["digests"][3:]
        assert stopped["totals"] == never["totals"]
        for name in ("link_bytes", "link_messages"):
            assert torch.equal(stopped["state"][name], never["state"][name])


def test_what_cannot_be_is_refused(four: Results) -> None:
    found = four[0]["refused"]
    assert found["not each once"].startswith(
        "sites = [[0, 1], [1, 2]]: 3 in no site; 1 in more than one place"
    )
    assert found["another exchange"].startswith("sites = [[0, 1], [2, 3]] with exchange = exact")
    assert found["unknown"] == "exchange = padded: must be exact or hierarchical"
