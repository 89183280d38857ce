"""The process that keeps a network: makes it, forwards, and removes it when nobody holds its input open.

So a network goes with the program that asked for it, also where that one was killed.
"""

import os
import signal
import sys

from pydantic import TypeAdapter

from .forwarder import forward, join_by_forwarder
from .namespaces import ip, name_of, remove_all_of, remove_stale
from .switch import join_by_bridges
from .topology import Topology

SUBNET = "10.88.0"


def addresses_of(hosts: int) -> list[str]:
    return [f"{SUBNET}.{number + 1}" for number in range(hosts)]


def keep(topology: Topology) -> None:
    """Makes the network, says so on standard output, and keeps it until standard input ends."""
    me = os.getpid()
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(caught, lambda *_: sys.exit())
    remove_stale()
    addresses = addresses_of(len(topology.links))
    try:
        for number in range(len(topology.links)):
            host = name_of(me, f"h{number}")
            ip(f"netns add {host}")
            ip(f"-n {host} link set lo up")
        if topology.in_kernel:
            join_by_bridges(me, topology, addresses)
            print("ready", flush=True)
            sys.stdin.read()
        else:
            ends = join_by_forwarder(me, topology, addresses)
            print("ready", flush=True)
            forward(topology, ends, sys.stdin.fileno())
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        remove_all_of(me)


if __name__ == "__main__":
    try:
        keep(TypeAdapter(Topology).validate_json(sys.argv[1]))
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
