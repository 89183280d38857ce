"""A network with delay and loss: a TUN device in every host, and one process that forwards between them.

Test machines' kernels have no netem. What a host sends is limited by the kernel (tbf on its device); delays,
losses, what a host receives at most and what lies between sites are reckoned here, packet by packet.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
from time import monotonic

from .namespaces import QUEUE_S, NetworkError, ip, limit, name_of
from .topology import Topology

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_IPV4 = 4
_AT_ONCE = 32
"""Packets taken from one host before the next one's turn."""
_IDLE_S = 1.0
_PRIORITY = -10
"""Packets wait for nothing but their link: hosts keep the processors busy."""


def join_by_forwarder(keeper: int, topology: Topology, addresses: list[str]) -> list[int]:
    """Gives every host a device `net0`; returns the other ends, as file descriptors."""
    ends = []
    for number, link in enumerate(topology.links):
        host = name_of(keeper, f"h{number}")
        ends.append(_device_in(host))
        ip(f"-n {host} addr add {addresses[number]}/24 dev net0")
        ip(f"-n {host} link set net0 mtu {topology.mtu} txqueuelen 1000 up")
        limit(host, "net0", link, topology.mtu)
    return ends


def _device_in(namespace: str) -> int:
    """A TUN device inside a namespace; its file descriptor stays usable from outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, 0):
            raise NetworkError(f"cannot enter the namespace {namespace}: {os.strerror(ctypes.get_errno())}")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"net0", _IFF_TUN | _IFF_NO_PI))
        finally:
            libc.setns(home, 0)
    finally:
        os.close(there)
        os.close(home)
    return device


def forward(topology: Topology, ends: list[int], until: int) -> None:
    """Forwards packets until `until`, a file descriptor, can be read.

    A packet is lost by chance or where a queue is full: before a host's own link on the way in, before what
    joins the sites, or in the receiving host's device. What is on its way at the end is lost too.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    hosts = range(len(ends))
    paths = [[topology.path(source, to) for to in hosts] for source in hosts]
    crosses = [[topology.sites[source] != topology.sites[to] for to in hosts] for source in hosts]
    seconds_a_byte = [8 / link.rate for link in topology.links]
    trunk_seconds = 8 / topology.between.rate if topology.between else 0.0
    trunk_free = [0.0, 0.0]
    free = [0.0] * len(ends)
    """When each host's link, on the way in, has taken all that was sent so far."""
    waiting: list[tuple[float, int, int, bytes]] = []
    number, chance = 0, random.Random(0)
    source_of = {end: host for host, end in enumerate(ends)}
    watched = [*ends, until]
    while True:
        now = monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            try:
                os.write(ends[to], packet)
            except OSError:  # the receiving device's queue is full, or the device is down
                continue
        wait = min(_IDLE_S, max(0.0, waiting[0][0] - monotonic())) if waiting else _IDLE_S
        ready, _, _ = select.select(watched, (), (), wait)  # its timeout is exact, unlike epoll's
        for end in ready:
            if end == until:
                return
            source = source_of[end]
            now = monotonic()
            for _ in range(_AT_ONCE):
                try:
                    packet = os.read(end, topology.mtu)
                except BlockingIOError:
                    break
                # IPv4 to one of ours; the last byte of the address is the host's number, counted from 1.
                to = packet[19] - 1
                if packet[0] >> 4 != _IPV4 or not 0 <= to < len(ends) or to == source:
                    continue
                path = paths[source][to]
                if path.loss and chance.random() < path.loss:
                    continue
                arrives = now
                if crosses[source][to]:
                    side = topology.sites[source]
                    begins = max(arrives, trunk_free[side])
                    if begins - arrives > QUEUE_S:
                        continue
                    arrives = trunk_free[side] = begins + trunk_seconds * len(packet)
                # Where the sender's link is the receiver's bottleneck too, both let packets through at once.
                ends_at = max(arrives, free[to] + seconds_a_byte[to] * len(packet))
                if ends_at - arrives > QUEUE_S:
                    continue
                free[to] = ends_at
                number += 1
                heapq.heappush(waiting, (ends_at + path.delay, number, to, packet))
