"""Makes a network and keeps it until Ctrl-C, or runs a command on its first host."""

import argparse
import signal
import sys

from . import Link, Network, NetworkError, two_sites, uniform


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument(
        "--link", default="100mbit,20ms", help="rate, delay one way, loss: 100mbit,20ms,0.1%%"
    )
    parser.add_argument("--between", help="two sites of half of the hosts each, joined by such a link")
    parser.add_argument("command", nargs="*", help="runs on the first host; without it, wait for Ctrl-C")
    arguments = parser.parse_args()
    try:
        link = Link.parse(arguments.link)
        if arguments.between:
            topology = two_sites(arguments.hosts // 2, link, Link.parse(arguments.between))
        else:
            topology = uniform(arguments.hosts, link)
        with Network(topology) as network:
            for host in network.hosts:
                print(f"{host.address}  ip netns exec {host.namespace} COMMAND", file=sys.stderr)
            if len(network.hosts) > 1:
                print(f"first to last host: {network.probe(0, len(network.hosts) - 1)}", file=sys.stderr)
            if arguments.command:
                return int(network.hosts[0].run(arguments.command, check=False).returncode)
            print("Ctrl-C removes it", file=sys.stderr)
            signal.pause()
    except (NetworkError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
