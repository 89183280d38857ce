"""Hosts on one machine, joined by links of a given rate, delay and loss: network namespaces. Needs root.

with Network(uniform(4, Link.parse("100mbit,20ms"))) as network:
    print(network.probe(0, 1))
    network.hosts[0].run(["taugrad", "train", "experiments/quickstart/2-wgt.yaml"])

python -m benchmarks.network --hosts 4 --link 100mbit,20ms     # until Ctrl-C
"""

from .network import Host, Network, NetworkError, why_not
from .probe import Probe
from .topology import Link, Topology, two_sites, uniform

__all__ = [
    "Host",
    "Link",
    "Network",
    "NetworkError",
    "Probe",
    "Topology",
    "two_sites",
    "uniform",
    "why_not",
]
