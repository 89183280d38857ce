"""A network without delay or loss: links to bridges, shaped by the kernel alone."""

from .namespaces import ip, limit, name_of
from .topology import Topology


def join_by_bridges(keeper: int, topology: Topology, addresses: list[str]) -> None:
    """Joins the hosts' namespaces, which exist; the middle gets one of its own.

    Each host's `net0` leads to a bridge for its site. Both ends of a link are shaped, and so are both ends of
    what lies between sites.
    """
    middle = name_of(keeper, "middle")
    ip(f"netns add {middle}")
    for site in sorted(set(topology.sites)):
        ip(f"-n {middle} link add site{site} type bridge")
        ip(f"-n {middle} link set site{site} mtu {topology.mtu} up")
    for number, site in enumerate(topology.sites):
        host = name_of(keeper, f"h{number}")
        port = f"port{number}"
        ip(f"link add net0 netns {host} mtu {topology.mtu} type veth peer name {port} netns {middle}")
        ip(f"-n {middle} link set {port} mtu {topology.mtu} master site{site} up")
        ip(f"-n {host} addr add {addresses[number]}/24 dev net0")
        ip(f"-n {host} link set net0 up")
    if topology.between is not None:
        ip(f"-n {middle} link add trunk0 mtu {topology.mtu} type veth peer name trunk1")
        for site in (0, 1):
            ip(f"-n {middle} link set trunk{site} mtu {topology.mtu} master site{site} up")
    shape_bridges(keeper, topology, topology.mtu)


def shape_bridges(keeper: int, topology: Topology, mtu: int, *, anew: bool = False) -> None:
    """Gives all links their rates; `anew` where they have some already."""
    middle = name_of(keeper, "middle")
    for number, link in enumerate(topology.links):
        limit(name_of(keeper, f"h{number}"), "net0", link, mtu, anew=anew)
        limit(middle, f"port{number}", link, mtu, anew=anew)
    if topology.between is not None:
        for site in (0, 1):
            limit(middle, f"trunk{site}", topology.between, mtu, anew=anew)
