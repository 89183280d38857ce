"""Where the workers of a run are: those of one node of Ray's cluster are one site."""

from taugrad.compressors.exchange.addresses import places_of
from taugrad.compressors.exchange.sites import Sites

from ..spec import RunSpec
from ..synchronization.config import real
from .process_group import own_address


def with_sites(spec: RunSpec) -> RunSpec:
    """The spec with the workers' sites by their nodes, if it asks for sites and does not name them.

    All workers must call this together, in torch's process group.
    """
    sync = spec.sync
    if sync.is_simulated or real(sync).pattern_name != "hierarchical" or real(sync).site_ranks is not None:
        return spec
    sites = Sites.by_place(places_of(place=own_address())).members
    return spec.model_copy(update={"sync": sync.model_copy(update={"sites": sites})})
