"""The tutorial, exactly as it stands: its files are written, its commands are run, in their order."""

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from stored import client_of, named_runs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "site"))
import fences

pytestmark = pytest.mark.ray

PAGE = "docs/tutorial.md"
TIMEOUT_S = 240


def serve(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """Runs a command that serves until Ctrl-C; what it printed, once the page that it names was there."""
    # In the background Ctrl-C may be ignored, and that is inherited.
    line = ["env", "--default-signal=INT", *command]
    process = subprocess.Popen(
        line, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = ""
    try:
        for text in process.stdout:
            said += text
            if "Ctrl-C" in text:
                break
        address = re.search(r"http://127\.0\.0\.1:\d+/#\S+viewStateShareKey=\S+", said)
        assert address is not None, said
        with urllib.request.urlopen(address[0].partition("#")[0], timeout=60) as answer:
            assert b"<title>MLflow" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
    finally:
        process.kill()
        process.wait()
    return said


@pytest.mark.long
def test_its_files_and_commands_do_what_it_says(one_ray, environment, command):
    folder = one_ray.folder
    blocks = list(fences.blocks(PAGE))
    for block in blocks:
        if block.file:
            (folder / block.file).write_text(block.text)
    said = {}
    for line in [line for block in blocks for line in block.commands]:
        program, *words = shlex.split(line)
        if program == "python":
            subprocess.run([sys.executable, *words], cwd=folder, check=True, timeout=TIMEOUT_S)
        elif words[0] == "dashboard":
            said[words[0]] = serve([*command, *words], folder, environment)
        else:
            assert program == "taugrad"
            code, said[words[0]] = one_ray(*words, compare=True)
            assert code == 0, said[words[0]]

    runs = {name: run.data.metrics for name, run in named_runs(client_of(folder), "tutorial").items()}
    assert runs.keys() == {"plain", "compressed"}
    assert runs["plain"]["total/compression_ratio"] == pytest.approx(1)
    assert runs["compressed"]["total/compression_ratio"] > 100
    for metrics in runs.values():
        assert metrics["eval/accuracy"] > 0.9
    report = (folder / "report" / "report.html").read_text()
    assert "compressed" in report
    assert "plain" in report
    front = folder / "taugrad-runs" / "searches" / "tutorial_search" / "search" / "front.csv"
    assert len(front.read_text().splitlines()) > 1
    assert "--pick" in said["search"]
