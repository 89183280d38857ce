"""Runs the coordinator of members that come and go, and shows what it knows.

python -m taugrad.compressors.coordinator --listen 10.0.0.1:7070 --key-file key --state run.db
python -m taugrad.compressors.coordinator status 10.0.0.1:7070 --key-file key
"""

import argparse
import logging
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import zmq

from .exchange.keys import key_of_file
from .exchange.members.decisions import OldTable, counted
from .exchange.members.messages import View, Want, from_bytes, to_bytes
from .exchange.members.server import CoordinatorFailed, CoordinatorServer, TableFile
from .exchange.members.sockets import COORDINATOR, dealer, send

_ANSWER_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser("python -m taugrad.compressors.coordinator", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:7070", help="HOST:PORT, or PORT of 127.0.0.1")
    parser.add_argument("--key-file", type=Path, required=True, help="holds the key that all members share")
    parser.add_argument("--state", type=Path, help="file of the run's table; made if there is none")
    parser.add_argument(
        "--accept-older",
        action="store_true",
        help="where all members are gone, go on from an older state than the last",
    )
    parser.add_argument("command", nargs="?", choices=["status"], help="show the members of a coordinator")
    parser.add_argument("at", nargs="?", help="for status: HOST:PORT")
    options = parser.parse_args(arguments)
    if (options.command is None) == (options.state is None):
        parser.error("give --state to run a coordinator, or `status HOST:PORT`")
    try:
        key = key_of_file(options.key_file, "--key-file")
        if options.command:
            print(described(ask_status(options.at or options.listen, key)))
        else:
            _serve(options.listen, key, options.state, accept_older=options.accept_older)
    except (CoordinatorFailed, OldTable, ValueError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def _serve(listen: str, key: bytes, state: Path, *, accept_older: bool) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    server = CoordinatorServer(listen, key, TableFile(state), accept_older=accept_older)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.stop())
    print(f"listening at {server.address}", flush=True)
    server.run()


def ask_status(at: str, key: bytes, wait_s: float = _ANSWER_S) -> View:
    """The view of the coordinator at HOST:PORT; raises CoordinatorFailed if it does not answer."""
    context = zmq.Context(io_threads=1)
    connection = dealer(context, at, key, COORDINATOR, f"status {secrets.token_hex(8)}")
    try:
        send(connection, to_bytes(Want()).data)
        if not connection.poll(round(1000 * wait_s)):
            raise CoordinatorFailed(
                f"no coordinator at {at} answers within {wait_s:g} s: it does not run, or has another key"
            )
        view = from_bytes(np.frombuffer(connection.recv(), np.uint8), f"the coordinator at {at}")
    finally:
        connection.close(0)
        context.term()
    if not isinstance(view, View):
        raise CoordinatorFailed(f"the coordinator at {at} answered with a {view.kind}")
    return view


def described(view: View) -> str:
    """What a coordinator knows, as text."""
    lines = [f"run {view.run}, epoch {view.epoch}: {view.last} rounds, {counted(len(view.peers))}"]
    if view.peers:
        lines.append("slot  incarnation  round  left out  sent MB  heard  at")
    for member in sorted(view.peers, key=lambda member: member.slot):
        number = "joins" if member.joining else f"{member.applied}"
        lines.append(
            f"{member.slot:4}  {member.incarnation:11}  {number:>5}  {member.left_out:8}  "
            f"{member.sent_bytes / 1e6:7.1f}  {member.silent_s:4.1f}s  {member.endpoint}"
        )
    lines += [f"left: incarnation {reason}" for reason in view.left]
    return "\n".join([*lines, view.waiting] if view.waiting else lines)


if __name__ == "__main__":
    sys.exit(main())
