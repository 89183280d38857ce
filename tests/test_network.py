"""The network on one machine: its links are what was asked for, and nothing of it stays behind."""

import os
import signal
import sys
from pathlib import Path

import pytest
from benchmarks.network import Link, Network, NetworkError, two_sites, uniform, why_not
from benchmarks.network.namespaces import namespaces
from needs import missing
from waiting import ended, program, until

pytestmark = pytest.mark.long  # real rates and delays, which a busy machine changes
ROOT = Path(__file__).resolve().parent.parent


TIMEOUT_S = 60
BUSY_S = 0.004
"""What a loaded machine adds to a delay."""
TRIES = 3
"""A machine that is busy with other things loses packets, too, but not again and again."""


@pytest.fixture(scope="module", autouse=True)
def may_be_made():
    if reason := why_not():
        missing(reason)
    try:
        with Network(uniform(2, Link.parse("1gbit,1ms"))):
            pass
    except NetworkError as error:
        missing(str(error))


@pytest.mark.parametrize(
    ("topology", "source", "to"),
    [
        (uniform(2, Link.parse("100mbit")), 0, 1),
        (uniform(3, Link.parse("50mbit,20ms")), 2, 0),
        (uniform(2, Link.parse("100mbit,5ms,10%")), 0, 1),
        (two_sites(2, Link.parse("200mbit,2ms"), Link.parse("20mbit,30ms")), 3, 1),
    ],
    ids=["rate", "delay", "loss", "two sites"],
)
def test_links_are_what_was_asked_for(topology, source, to):
    asked = topology.path(source, to)
    with Network(topology) as network:
        for _ in range(TRIES):
            result = network.probe(source, to)
            in_time = asked.delay <= result.delay <= 1.05 * asked.delay + BUSY_S
            if in_time and result.loss == pytest.approx(asked.loss, abs=0.05 if asked.loss else 0.005):
                break
        else:  # a busy machine delays and drops packets, too, but not every time
            pytest.fail(f"asked for {asked}, found {result}")
    # Payload only, for some seconds: what waited in a queue meanwhile may come on top, and a connection that
    # loses packets, or that a busy machine holds up, does not fill its link.
    assert result.rate < 1.05 * asked.rate
    if not asked.loss:
        assert result.rate > 0.5 * asked.rate


PROGRAM = """
import signal, subprocess, sys, time
from benchmarks.network import Link, Network, uniform
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
with Network(uniform(2, Link.parse(sys.argv[1]))) as network:
    inside = network.hosts[0].popen(["sleep", "600"], stdout=subprocess.DEVNULL)
    print(network._keeper.pid, inside.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("killed", ["the program", "the keeper", "both"])
def test_nothing_stays_behind_where_processes_are_killed(killed):
    with program(PROGRAM, "100mbit,5ms", cwd=ROOT) as command:
        keeper, inside = map(int, command.stdout.readline().split())
        assert sum(whose == keeper for whose in namespaces().values()) >= 2
        if killed != "the program":
            os.kill(keeper, signal.SIGKILL)
        command.send_signal(signal.SIGINT if killed == "the keeper" else signal.SIGKILL)
        command.wait(TIMEOUT_S)
        if killed == "both":  # the next network does it, that of another test, too
            until(lambda: not os.path.exists(f"/proc/{keeper}/exe"))
            with Network(uniform(1, Link.parse("1gbit"))):
                pass
        until(lambda: keeper not in namespaces().values())
        until(lambda: not os.path.exists(f"/proc/{inside}/exe"))


ASKING = """import socket, sys
try:
    socket.create_connection(("10.88.0.2", 9), timeout=1)
except ConnectionRefusedError:
    sys.exit(0)  # by whoever is there
except OSError:
    sys.exit(1)
"""


def test_a_link_that_is_cut_carries_nothing_until_it_is_mended():
    with Network(uniform(2, Link.parse("1gbit"))) as network:

        def reached() -> bool:
            return network.hosts[0].run([sys.executable, "-c", ASKING], check=False).returncode == 0

        assert reached()
        network.unplug(1)
        assert not reached()
        network.plug_in(1)
        until(reached)


def test_the_command_runs_another_in_the_first_host():
    command = [sys.executable, "-m", "benchmarks.network", "--hosts", "2", "--link", "1gbit,1ms", "--"]
    asking = "import socket; print(socket.create_server(('10.88.0.1', 9)).getsockname())"
    inside = [sys.executable, "-c", asking]
    done = ended([*command, *inside], cwd=ROOT)
    assert done.stdout == "('10.88.0.1', 9)\n", done.stderr
    assert "Mbit/s" in done.stderr
    assert "10.88.0.2" in done.stderr
