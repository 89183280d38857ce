"""docs/extending.md and its package: installed as anybody's, run, trained with; wrong ones are refused."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "extension"
PAGE = ROOT / "docs" / "extending.md"
KINDS = {"rules": "rotating", "quantizers": "ternary", "policies": "mean", "codecs": "varint"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the example was installed, as a package of its own."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    shutil.copytree(EXAMPLE, source, dirs_exist_ok=True)  # a build leaves its files there
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def python(code: str, *folders: Path, cwd: Path | None = None) -> str:
    """What a fresh interpreter prints, with packages from some folders besides."""
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error::UserWarning",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TELL = """
from pydantic import ValidationError
from taugrad.compressors.method import read_config
for line in {lines}:
    try: print("taken as", read_config(line))
    except ValidationError as error: print(error.errors()[0]["msg"])
"""


def told(lines: list[str], *folders: Path) -> list[str]:
    """What each line is refused with, or what it is taken as."""
    return python(TELL.format(lines=json.dumps(lines)), *folders).splitlines()


def test_the_page_shows_every_file_of_the_example() -> None:
    page = PAGE.read_text()
    files = [
        path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml") and path.name != "__init__.py"
    ]
    assert len(files) == 5
    for path in files:
        assert path.read_text() in page, path


def test_the_example_has_one_of_each() -> None:
    groups = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group: list(entries) for group, entries in groups.items()} == {
        f"taugrad.{group}": [kind] for group, kind in KINDS.items()
    }


def test_without_the_package_its_names_are_unknown() -> None:
    for refused in told(["rotating(8)", "wgt(mean(3))", "wgt(1) | ternary", "wgt(1) | varint"]):
        assert "is unknown: choose" in refused


ROUND_TRIPS = """
import numpy as np, torch
from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.method import chain, read_config

SIZES = (1000, 77, 1)
for line in (
    "rotating(4)",
    "rotating(stripes=4) | varint",
    "rotating(4, momentum=0.5, exempt=exempt(smaller_than=2)) | ternary | varint | huffman",
    "wgt(tau=mean(factor=2)) | varint",
    "wgt(tau=0.5) | ternary",
    "qgt(tau=mean(factor=1, keep=0)) | varint | huffman",
    "strom(tau=layers(default=0.1, patterns={'a*': mean(factor=1)})) | varint",
):
    config = read_config(line)
    for same in (str(config), config.model_dump(), config.model_dump(mode="json"), config):
        assert read_config(same) == config, line
    assert eval(repr(config), {"chain": chain}) == config
    like = [torch.zeros(size) for size in SIZES]
    worker, resumed = (FeedbackCompressor(config, "abc", like, threads=1) for _ in range(2))
    owed = [np.zeros(size) for size in SIZES]
    for step in range(9):
        torch.manual_seed(step)
        gradients = [torch.randn(size) for size in SIZES]
        if step == 5:
            resumed.load_state_dict(worker.state_dict())
        payload = worker.compress([each.clone() for each in gradients], step).payload
        if step >= 5:
            again = resumed.compress([each.clone() for each in gradients], step).payload
            assert payload.tobytes() == again.tobytes(), line
        total = torch.zeros(sum(SIZES))
        worker.compressor.total([worker.read(payload)], 1, total)
        for each, gradient, got in zip(owed, gradients, total.split(SIZES)):
            each += gradient.double().numpy() - got.double().numpy()
    if "momentum" not in line:
        for each, name in zip(owed, "abc"):
            assert np.abs(each - worker.feedback.residuals[name].numpy()).max() < 1e-5, line
    print("good")
"""


def test_methods_of_the_package_come_back_from_messages_and_lose_nothing(site: Path) -> None:
    assert python(ROUND_TRIPS, site).split() == ["good"] * 7


DAMAGED = """
import numpy as np
from taugrad.compressors.errors import CorruptMessage
from taugrad_extension.varint import decode, encode

rng = np.random.default_rng(0)
for n in (1, 40, 2**31 - 1):
    for k in (0, 1, min(n, 999)):
        positions = np.unique(rng.integers(0, n, k)).astype(np.uint32)
        words = positions << np.uint32(1) | rng.integers(0, 2, positions.size).astype(np.uint32)
        section = np.frombuffer(encode(words), np.uint8)
        found, used = decode(np.append(section, np.uint8(7)), n, words.size)
        assert used == section.size and found.tolist() == words.tolist()
        for body in (section[:-1], np.append(section[:-1], np.uint8(128)), np.zeros(9, np.uint8)):
            if words.size > 1:
                try: decode(body, n, words.size)
                except CorruptMessage: continue
                raise AssertionError(body)
for body, n, k in (([0x80, 0x00], 5, 1), ([0x0A], 5, 1), ([0x80] * 5 + [1], 5, 1)):
    try: decode(np.array(body, np.uint8), n, k)
    except CorruptMessage: continue
    raise AssertionError(body)
print("good")
"""


def test_the_codec_of_the_package_refuses_what_it_did_not_write(site: Path) -> None:
    assert python(DAMAGED, site) == "good\n"


UNKNOWN_CODE = """
import torch
from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.method import read_config
from taugrad.compressors.errors import CorruptMessage

worker = FeedbackCompressor(read_config("wgt(0.5)"), ["a"], [torch.zeros(100)], threads=1)
try: worker.read(torch.load("payload.pt").numpy())
except CorruptMessage as error: print(error)
"""


def test_a_message_of_a_codec_that_no_method_asked_for_is_refused(site: Path, tmp_path: Path) -> None:
    """Installed or not: a message makes nothing be imported."""
    write = (
        "import torch\n"
        "from taugrad.compressors.bucket.feedback import FeedbackCompressor\n"
        "from taugrad.compressors.method import read_config\n"
        "config, like = read_config('wgt(0.5) | varint'), [torch.zeros(100)]\n"
        "worker = FeedbackCompressor(config, ['a'], like, threads=1)\n"
        "payload = worker.compress([torch.randn(100)], 0).payload\n"
        "torch.save(torch.from_numpy(payload.copy()), 'payload.pt')"
    )
    python(write, site, cwd=tmp_path)
    for folders in ((), (site,)):
        said = python(UNKNOWN_CODE, *folders, cwd=tmp_path)
        assert said == "codec 200 is unknown; known are [0, 1, 2, 3, 4, 5]\n"


TRAINING = """
import json, torch, torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from pathlib import Path
from recorder import Recorder
from taugrad.platform.data import load
from taugrad.platform.spec.reading import read_spec
from taugrad.platform.training.trainer import Trainer

spec = read_spec(Path("spec.yaml"), ["--compressor.decay", "0.9"])
assert spec.compressor.decay == 0.9 and spec.compressor.kind == "rotating"
dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
heard = Recorder(Path("."))
Trainer(spec, load(spec.data), torch.device("cpu"), heard).fit()
print(json.dumps([metrics for _, metrics in heard.logged if "train/loss" in metrics]))
"""


def test_a_spec_trains_with_the_package(site: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "compressor: rotating(4) | varint\n"
        "data: {kind: synthetic, train_examples: 300, test_examples: 60, height: 6, width: 6}\n"
        "model: {kind: mlp, widths: [16]}\n"
        "training: {iterations: 40, batch_size: 30, optimizer: {kind: sgd, lr: 0.1}}\n"
        "workers: {count: 2}\nsync: {mode: simulated}\ncheckpoint: {interval: 1000}\n"
    )
    found = json.loads(python(TRAINING, site, ROOT / "tests" / "platform", cwd=tmp_path).splitlines()[-1])
    assert len(found) == 40
    assert found[-1]["train/loss"] < 0.7 * found[0]["train/loss"]
    assert all(step["comm/fraction"] == pytest.approx(0.25, abs=0.02) for step in found)


def test_help_names_the_package_and_imports_none_of_it(site: Path) -> None:
    code = (
        "import sys; from taugrad.cli import main\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: print('taugrad_extension' in sys.modules)"
    )
    said = " ".join(python(code, site).replace("-\n", "-").split())
    for what in ("rule rotating", "quantizer ternary", "policy mean", "codec varint"):
        assert f"{what} of the package taugrad-" in said
    assert said.endswith("False")


# Wrong packages.


def package(folder: Path, name: str, modules: dict[str, str], entries: dict[str, list[str]]) -> Path:
    """A folder in which a package is installed: modules, and entry points by group."""
    site = folder / name
    about = site / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    for module, code in modules.items():
        (site / f"{module}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = ("\n".join([f"[taugrad.{group}]", *lines]) for group, lines in entries.items())
    (about / "entry_points.txt").write_text("\n".join(groups))
    return site


RULE = """
from typing import Literal
from taugrad.compressors.method.sparse import SparseMethod, ThresholdedMethod
class Mine(SparseMethod):
    kind: Literal["{name}"] = "{name}"
"""
SELECTING = "    rule = 'taugrad_extension.rotating:Stripes'\n"
QUANTIZER = """
from taugrad.compressors.method.quantizers import QuantizerLink
class Mine(QuantizerLink):
    kind: str = "{name}"
"""
MAKES = "    makes = 'linear'\n"
APPLYING = "    quantizes = 'taugrad_extension.ternary:Signs'\n"
POLICY = """
from taugrad.compressors.method.policies import Policy
class Mine(Policy):
    kind: str = "{name}"
"""
CODEC = """
from taugrad_extension.varint import Varint
class Mine(Varint):
    name, code = "{name}", 200
"""
THRESHOLDED = RULE.replace("(SparseMethod)", "(ThresholdedMethod)")
CODE_WANTED = "Mine needs a code from 128 to 255"
WRONG = {
    # A name: the group, the module's text, a line, and what it is refused with.
    "failing": ("rules", "1 / 0", "failing", "cannot be loaded: ZeroDivisionError: division by zero"),
    "number": ("rules", "Mine = 3", "number", "number:Mine is not a subclass of taugrad.compressors.method"),
    "idle": ("rules", RULE, "idle", "Mine.rule = None: must be the address of a"),
    "renamed": (
        "rules",
        RULE.format(name="x") + SELECTING,
        "renamed",
        'kind: Literal["renamed"] = "renamed"',
    ),
    "unfirst": (
        "rules",
        f"{RULE}{SELECTING}    first_field = 'x'\n",
        *("unfirst(3)", "Mine.first_field = x is none of its fields"),
    ),
    "unsent": ("rules", THRESHOLDED, "unsent(1)", "Mine needs sends, what stands for an element"),
    "passless": (
        "quantizers",
        QUANTIZER + MAKES,
        "wgt(1) | passless",
        "Mine.quantizes = None: must be the address",
    ),
    "formless": (
        "quantizers",
        QUANTIZER + APPLYING,
        "wgt(1) | formless",
        "Mine needs makes, the form of",
    ),
    "undecided": ("policies", POLICY, "wgt(undecided())", "Mine.decides = None: must be the address of a"),
    "ours": ("codecs", CODEC.replace("200", "3"), "wgt(1) | ours", CODE_WANTED),
    "uncoded": ("codecs", CODEC.replace("200", "None"), "wgt(1) | uncoded", CODE_WANTED),
    "unvalued": (
        "codecs",
        f"{CODEC}    with_values = True\n",
        "wgt(1) | unvalued",
        "Mine needs values, which",
    ),
    "unnamed": ("codecs", CODEC.format(name="x"), "wgt(1) | unnamed", 'Mine needs name = "unnamed"'),
}


def test_wrong_packages_are_refused(site: Path, tmp_path: Path) -> None:
    modules = {name: code.replace("{name}", name) for name, (_, code, _, _) in WRONG.items()}
    entries: dict[str, list[str]] = {"rules": ["gone = nowhere:Mine"]}
    for name, (group, *_) in WRONG.items():
        entries.setdefault(group, []).append(f"{name} = {name}:Mine")
    wrong = package(tmp_path, "wrong", modules, entries)
    due = {line: words for _, _, line, words in WRONG.values()}
    due |= {"gone": "rule gone of the package wrong cannot be loaded: ModuleNotFoundError"}
    for found, words in zip(told([*due], wrong, site), due.values(), strict=True):
        assert words in found


def test_two_packages_cannot_bring_one_name(site: Path, tmp_path: Path) -> None:
    other = package(tmp_path, "other", {}, {"rules": ["rotating = a:B"], "policies": ["density = a:B"]})
    twice, ours, *fine = told(["rotating(3)", "wgt(mean(3))", "wgt(1)", "wgt(density(0.1))"], other, site)
    assert "rule rotating of the package taugrad-extension: the package other has one of that name" in twice
    assert "policy density of the package other: taugrad itself has one of that name" in ours
    assert fine == ["taken as wgt(tau=1)", "taken as wgt(tau=density(target=0.1))"]  # ours go on


def test_two_codecs_with_one_code_cannot_be_used_together(site: Path, tmp_path: Path) -> None:
    code = CODEC.replace("{name}", "mine")
    other = package(tmp_path, "other", {"other": code}, {"codecs": ["mine = other:Mine"]})
    both = (
        "from taugrad.compressors.bucket.compressor import Compressor\n"
        "from taugrad.compressors.method import read_config\n"
        "Compressor(read_config('wgt(1) | varint'))\n"
        "try: Compressor(read_config('wgt(1) | mine'))\n"
        "except ValueError as error: print(error)"
    )
    assert python(both, other, site) == "codec mine has the code 200, which varint has: choose another\n"


def test_the_doctor_looks_at_packages(site: Path, tmp_path: Path) -> None:
    code = RULE.replace("{name}", "mine")
    wrong = package(tmp_path, "wrong", {"wrong": code}, {"rules": ["mine = wrong:Mine"]})
    examine = (
        "from taugrad.platform.doctor import _extensions\n"
        "for each in _extensions(): print(each.state, each.detail)"
    )
    said = python(examine, wrong, site)
    assert "ok policy mean of the package taugrad-extension\n" in said
    assert re.search("wrong rule mine of the package wrong: Mine.rule = None", said)
