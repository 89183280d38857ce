"""docs/extending.md and its package: installed as anybody's, run, trained with; wrong ones are refused."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from pydantic import ValidationError

from taugrad.cli import main
from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.method import chain, read_config
from taugrad.compressors.method.registry import FAMILIES
from taugrad.compressors.wire import positions
from taugrad.platform.data import load
from taugrad.platform.doctor import _extensions
from taugrad.platform.spec.reading import read_spec
from taugrad.platform.training.trainer import Trainer

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


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Install]:
    """Packages of some folders are installed, and none of them has been used yet; until the test ends."""
    before, by_name, by_code = set(sys.modules), dict(positions._BY_NAME), dict(positions._BY_CODE)
    ours = {family.what: dict(family._loaded) for family in FAMILIES}

    def put(*folders: Path) -> None:
        for folder in folders:
            monkeypatch.syspath_prepend(folder)
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path.parent)):
                del sys.modules[name]
        for family in FAMILIES:
            vars(family).pop("others", None)
            monkeypatch.setattr(family, "_loaded", dict(ours[family.what]))
        monkeypatch.setattr(positions, "_BY_NAME", dict(by_name))
        monkeypatch.setattr(positions, "_BY_CODE", dict(by_code))

    yield put
    put()


def told(lines: list[str]) -> list[str]:
    """What each line is refused with, or what it is taken as."""
    found = []
    for line in lines:
        try:
            found.append(f"taken as {read_config(line)}")
        except ValidationError as error:
            found.append(error.errors()[0]["msg"])
    return found


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


SIZES = (1000, 77, 1)


@in_turn(
    "line",
    [
        "rotating(4)",
        "rotating(stripes=4) | varint",
        "rotating(4, momentum=0.5, exempt=exempt(smaller_than=2)) | ternary | varint | huffman",
        "wgt(tau=mean(factor=2)) | varint",
        "wgt(tau=0.5) | ternary",
        "qgt(tau=mean(factor=1, keep=0)) | varint | huffman",
        "strom(tau=layers(default=0.1, patterns={'a*': mean(factor=1)})) | varint",
    ],
)
def test_methods_of_the_package_come_back_from_messages_and_lose_nothing(
    line: str, site: Path, install: Install
) -> None:
    install(site)
    config: Any = read_config(line)
    for same in (str(config), config.model_dump(), config.model_dump(mode="json"), config):
        assert read_config(same) == config
    assert eval(repr(config), {"chain": chain}) == config
    like = [torch.zeros(size) for size in SIZES]
    worker, resumed = (FeedbackCompressor(config, list("abc"), like, threads=1) for _ in range(2))
    owed = torch.zeros(sum(SIZES), dtype=torch.float64)
    for step in range(9):
        torch.manual_seed(step)
        gradients = [torch.randn(size) for size in SIZES]
        if step == 5:
            resumed.load_state_dict(worker.state_dict())
        payload = worker.compress([each.clone() for each in gradients], step).payload
        if step >= 5:
            again = resumed.compress([each.clone() for each in gradients], step).payload
            assert payload.tobytes() == again.tobytes()
        total = torch.zeros(sum(SIZES))
        worker.compressor.total([worker.read(payload)], 1, total)
        owed += torch.cat(gradients).double() - total.double()
    if "momentum" not in line:
        kept = torch.cat([worker.feedback.residuals[name] for name in "abc"])
        assert (owed - kept).abs().max() < 1e-5


def test_the_codec_of_the_package_refuses_what_it_did_not_write(site: Path, install: Install) -> None:
    install(site)
    from taugrad_extension.varint import decode, encode

    rng = np.random.default_rng(0)
    for n, most in ((1, 1), (40, 40), (2**31 - 1, 999)):
        for k in (0, 1, most):
            places = np.unique(rng.integers(0, n, k)).astype(np.uint32)
            words = places << np.uint32(1) | rng.integers(0, 2, places.size).astype(np.uint32)
            section = np.frombuffer(encode(words), np.uint8)
            found, used = decode(np.append(section, np.uint8(7)), n, words.size)
            assert used == section.size
            assert found.tolist() == words.tolist()
            bodies = [section[:-1], np.append(section[:-1], np.uint8(128)), np.zeros(9, np.uint8)]
            for body in bodies if words.size > 1 else ():
                with pytest.raises(CorruptMessage):
                    decode(body, n, words.size)
    for foreign in ([0x80, 0x00], [0x0A], [0x80] * 5 + [1]):
        with pytest.raises(CorruptMessage):
            decode(np.array(foreign, np.uint8), 5, 1)


def test_a_message_of_a_codec_that_no_method_asked_for_is_refused(site: Path, install: Install) -> None:
    """Though it is installed: a message makes nothing be imported."""

    def worker(line: str) -> FeedbackCompressor:
        config: Any = read_config(line)
        return FeedbackCompressor(config, ["a"], [torch.zeros(100)], threads=1)

    install(site)
    payload = worker("wgt(0.5) | varint").compress([torch.randn(100)], 0).payload.copy()
    install()
    with pytest.raises(CorruptMessage, match=r"codec 200 is unknown; known are \[0, 1, 2, 3, 4, 5\]"):
        worker("wgt(0.5)").read(payload)
    assert "taugrad_extension" not in sys.modules


def test_a_spec_trains_with_the_package(
    site: Path, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    install(site)
    monkeypatch.syspath_prepend(ROOT / "tests" / "platform")
    from recorder import Recorder

    path = tmp_path / "spec.yaml"
    path.write_text(
        "compressor: rotating(4) | varint\n"
        "data: {kind: synthetic, train_examples: 300, test_examples: 60, height: 6, width: 6}\n"
        "model: {kind: mlp, widths: [16]}\n"
        "training: {iterations: 40, batch_size: 30, optimizer: {kind: sgd, lr: 0.1}}\n"
        "workers: {count: 2}\nsync: {mode: simulated}\ncheckpoint: {interval: 1000}\n"
    )
    spec: Any = read_spec(path, ["--compressor.decay", "0.9"])
    assert (spec.compressor.decay, spec.compressor.kind) == (0.9, "rotating")
    heard = Recorder(tmp_path)
    Trainer(spec, load(spec.data), torch.device("cpu"), heard).fit()
    found = [metrics for _, metrics in heard.logged if "train/loss" in metrics]
    assert len(found) == 40
    assert found[-1]["train/loss"] < 0.7 * found[0]["train/loss"]
    assert all(step["comm/fraction"] == pytest.approx(0.25, abs=0.02) for step in found)


def test_help_names_the_package_and_imports_none_of_it(
    site: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site)
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.replace("-\n", "-").split())
    for what in ("rule rotating", "quantizer ternary", "policy mean", "codec varint"):
        assert f"{what} of the package taugrad-" in said
    assert "taugrad_extension" not in sys.modules


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
    "formless": ("quantizers", QUANTIZER + APPLYING, "wgt(1) | formless", "Mine needs makes, the form of"),
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


def test_wrong_packages_are_refused(site: Path, install: Install, tmp_path: Path) -> None:
    modules = {name: code.replace("{name}", name) for name, (_, code, _, _) in WRONG.items()}
    entries: dict[str, list[str]] = {"rules": ["gone = nowhere:Mine"]}
    for name, (group, *_) in WRONG.items():
        entries.setdefault(group, []).append(f"{name} = {name}:Mine")
    wrong = package(tmp_path, "wrong", modules, entries)
    due = {line: words for _, _, line, words in WRONG.values()}
    due |= {"gone": "rule gone of the package wrong cannot be loaded: ModuleNotFoundError"}
    install(wrong, site)
    for found, words in zip(told([*due]), due.values(), strict=True):
        assert words in found


def test_two_packages_cannot_bring_one_name(site: Path, install: Install, tmp_path: Path) -> None:
    install(
        site, package(tmp_path, "other", {}, {"rules": ["rotating = a:B"], "policies": ["density = a:B"]})
    )
    twice, ours, *fine = told(["rotating(3)", "wgt(mean(3))", "wgt(1)", "wgt(density(0.1))"])
    assert "rule rotating of the package taugrad-extension: the package other has one of that name" in twice
    assert "policy density of the package other: taugrad itself has one of that name" in ours
    assert fine == ["taken as wgt(tau=1)", "taken as wgt(tau=density(target=0.1))"]  # ours go on


def test_two_codecs_with_one_code_cannot_be_used_together(
    site: Path, install: Install, tmp_path: Path
) -> None:
    code = CODEC.replace("{name}", "mine")
    install(site, package(tmp_path, "other", {"other": code}, {"codecs": ["mine = other:Mine"]}))
    first, second = (read_config(f"wgt(1) | {name}") for name in ("varint", "mine"))
    Compressor(first)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="codec mine has the code 200, which varint has: choose another"):
        Compressor(second)  # type: ignore[arg-type]


def test_the_doctor_looks_at_packages(site: Path, install: Install, tmp_path: Path) -> None:
    code = RULE.replace("{name}", "mine")
    install(site, package(tmp_path, "wrong", {"wrong": code}, {"rules": ["mine = wrong:Mine"]}))
    said = "".join(f"{each.state} {each.detail}\n" for each in _extensions())
    assert "ok policy mean of the package taugrad-extension\n" in said
    assert re.search("wrong rule mine of the package wrong: Mine.rule = None", said)
