"""How commands end: by `kill` as by Ctrl-C, and in silence where nobody reads on."""

import os
import signal
import subprocess
import sys
import time

import pytest
from waiting import ended, program

from taugrad import cli, signals

WAITING = """
import signal, sys, time
from taugrad.signals import run

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
    [
        (signal.SIGTERM, 143, "taugrad: terminated\n"),
        (signal.SIGINT, 130, "\ntaugrad: ending, which takes a few seconds\ntaugrad: interrupted\n"),
    ],
)
def test_a_signal_ends_a_command_in_words(sign, code, said):
    with program(WAITING, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(sign)
        assert process.stdout.readline() == "go on with ...\n"
        for _ in range(3):  # more of them must not cut the cleaning up short
            process.send_signal(sign)
            time.sleep(0.2)
        _, errors = process.communicate("done\n", timeout=60)
    assert (process.returncode, errors) == (code, said)


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (["train", "my run.yaml"], "; continue with: taugrad train 'my run.yaml'"),
        (["search", "a.yaml", "--x", "{log: 1}"], "; continue with: taugrad search a.yaml --x '{log: 1}'"),
        (["auto", "a.yaml"], "; continue with: taugrad auto a.yaml"),
        (["submit", "a.yaml", "--address", "b"], "; continue with: taugrad submit a.yaml --address b"),
        (["plan", "a.yaml"], ""),
    ],
)
def test_the_user_is_told_how_to_continue(words, how, monkeypatch, capsys):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"taugrad.commands.{words[0]}.run_{words[0]}", interrupted)
    assert cli.main(words) == 130
    assert capsys.readouterr().err == f"taugrad: interrupted{how}\n"


def test_what_a_command_says_itself_comes_first(capsys):
    def command() -> int:
        raise KeyboardInterrupt("continue with: this")

    assert signals.run(command, "that") == 130
    assert capsys.readouterr().err == "taugrad: interrupted; continue with: this\n"


def test_what_is_ignored_stays_ignored():
    """Ctrl-C is not for what a shell runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert signals.run(lambda: signal.raise_signal(signal.SIGINT) or 0) == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_closed_pipe_ends_a_command():
    piped = f"set -o pipefail; {sys.executable} -m taugrad train --help | (sleep 0.2; head -c 1)"
    answer = ended(["bash", "-c", piped])
    assert (answer.stdout, answer.stderr) == ("u", "")


PRINTING = """
import subprocess, sys
from rich.table import Table
from taugrad.signals import run
from taugrad.platform.terminal import open_console, say

def command():
    print("print \\u2026 \\xe9")
    print("errors \\u2026 \\xe9", file=sys.stderr)
    say(open_console(), "say \\u2026 \\xe9")
    table = Table("column \\u2026")
    table.add_row("\\u00d7 \\u2588 \\udcff")
    open_console().print(table)
    return subprocess.call([sys.executable, "-c", "print('child \\\\u2026 \\\\xe9')"])

sys.exit(run(command))
"""


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", b"\\u2026 \\xe9"), ("latin-1", b"\\u2026 \xe9"), ("utf-8", "\u2026 \xe9".encode())],
)
def test_no_character_ends_a_command(encoding, shown):
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    answer = ended([sys.executable, "-c", PRINTING], env=environment, text=False)
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert [b"print " + shown, b"say " + shown, b"child " + shown] == [lines[0], lines[1].rstrip(), lines[-1]]
    assert answer.stderr == b"errors " + shown + b"\n"
