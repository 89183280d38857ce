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
    for number, (site, link) in enumerate(zip(topology.sites, topology.links, strict=True)):
        host = name_of(keeper, f"h{number}")
        port = f"port{number}"
        ip(f"link add net0 netns {host} mtu {topology.mtu} type veth peer name {port} netns {middle}")
        ip(f"-n {middle} link set {port} mtu {topology.mtu} master site{site} up")
        ip(f"-n {host} addr add {addresses[number]}/24 dev net0")
        ip(f"-n {host} link set net0 up")
        limit(host, "net0", link, topology.mtu)
        limit(middle, port, link, topology.mtu)
    if topology.between is not None:
        ip(f"-n {middle} link add trunk0 mtu {topology.mtu} type veth peer name trunk1")
        for site in (0, 1):
            ip(f"-n {middle} link set trunk{site} mtu {topology.mtu} master site{site} up")
            limit(middle, f"trunk{site}", topology.between, topology.mtu)
