"""How commands end: by `kill` as by Ctrl-C, and in silence where nobody reads on."""

import signal
import subprocess
import sys
import time

import pytest

from taugrad import cli, ending

WAITING = """
import signal, sys, time
from taugrad.ending import run

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background

def command():
    try:
        print("waiting", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("go on with ...", flush=True)
        sys.stdin.readline()  # cleaning up
        raise

sys.exit(run(command))
"""


@pytest.mark.parametrize(
    ("sign", "code", "said"),
    [(signal.SIGTERM, 143, "taugrad: terminated\n"), (signal.SIGINT, 130, "taugrad: interrupted\n")],
)
def test_a_signal_ends_a_command_in_words(sign: signal.Signals, code: int, said: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(sign)
    assert process.stdout.readline() == "go on with ...\n"
    if sign == signal.SIGTERM:
        process.send_signal(sign)  # must not cut the cleaning up short
    time.sleep(0.2)
    _, errors = process.communicate("done\n", timeout=60)
    assert (process.returncode, errors) == (code, said)


def test_a_command_that_sees_to_it_itself_ends_with_the_same_code() -> None:
    def command() -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            return ending.INTERRUPTED  # as a search does
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert ending.run(command) == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("command", ["train --help", "--help", "search --help"])
def test_nobody_reads_on(command: str) -> None:
    answer = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m taugrad {command} | (sleep 0.2; head -c 1)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.stdout, answer.stderr) == ("u", "")


def test_other_broken_pipes_are_errors() -> None:
    def command() -> int:
        raise BrokenPipeError("a server's")

    with pytest.raises(BrokenPipeError):
        ending.run(command)


def test_exit_codes_pass_through(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("taugrad ")
