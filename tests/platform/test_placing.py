"""Which workers are one site: those of one node."""

from hashlib import sha256

import pytest

from taugrad.compressors.exchange import addresses
from taugrad.platform.launching import process_group
from taugrad.platform.launching.process_group import with_sites
from taugrad.platform.spec import RunSpec

NODES = ["10.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"]


@pytest.fixture(autouse=True)
def five_workers(monkeypatch):
    """This one is worker 3; the others' addresses come as the group's store would bring them."""

    def told(digest: bytes, group: object) -> list[bytes]:
        digests = [sha256(place.encode()).digest() for place in NODES]
        assert digests[3] == digest
        return digests

    monkeypatch.setattr(process_group, "own_address", lambda: NODES[3])
    monkeypatch.setattr(addresses, "all_gather_bytes", told)


def spec(**sync: object) -> RunSpec:
    return RunSpec.model_validate(
        {"workers": {"count": len(NODES)}, "sync": {"mode": "allgather", **sync}, "compressor": "wgt(0.01)"}
    )


def test_the_workers_of_a_node_are_a_site_by_default():
    result = with_sites(spec(pattern="hierarchical"))
    assert result.sync.model_dump()["sites"] == ((0, 2), (1, 4), (3,))
    assert result.model_copy(update={"sync": spec().sync}) == spec()


def test_sites_that_the_spec_names_stay():
    named = spec(pattern="hierarchical", sites=[[0, 1, 2, 3], [4]])
    assert with_sites(named) == named


SITES = {"pattern": "hierarchical", "sites": [[0, 1, 2, 3, 4]]}


@pytest.mark.parametrize(
    "sync", [{}, {"mode": "ring"}, {"mode": "simulated", "of": {"mode": "allgather", **SITES}}]
)
def test_who_asks_for_no_sites_has_none(sync):
    assert with_sites(spec(**sync)) == spec(**sync)
