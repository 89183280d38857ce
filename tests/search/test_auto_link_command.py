"""`taugrad auto --target` from its arguments to the training, and the beginnings that a probe trains."""

from pathlib import Path

import pytest
import yaml
from calibrations import calibration as measured
from calibrations import work
from finished import StandIn
from specs import digits

from taugrad import cli
from taugrad.platform.data import load
from taugrad.platform.exit_codes import FAILED, OK
from taugrad.platform.spec.reading import read_spec
from taugrad.platform.spec.run import PublishConfig
from taugrad.platform.spec.synchronization import SimulatedSync
from taugrad.platform.tracking import names
from taugrad.search.auto_link import run_auto_link as command
from taugrad.search.auto_link.probe_runs import probe_runs_of
from taugrad.search.auto_link.request import TargetRequest
from taugrad.search.auto_link.run_auto_link import ARTIFACT, run_auto_link
from taugrad.search.plan.calibrated import HALF
from taugrad.search.plan.candidates import candidates_of
from taugrad.search.plan.link import Link

TRAINING = {"iterations": 240, "batch_per_worker": 16, "optimizer": {"kind": "sgd", "lr": 0.05}}
SPEC = digits(model={"kind": "mlp", "widths": [32]}, training=TRAINING)
PARAMETERS = 64 * 32 + 32 + 32 * 10 + 10
DENSE = "none"
EACH_STEP = "strom(tau=density(target=0.1)) | golomb_rice"
LOCAL = "strom(tau=density(target=0.1, every=1)) | golomb_rice"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(yaml.safe_dump(SPEC.model_dump(mode="json")))
    return str(path)


@pytest.fixture
def calibration(tmp_path):
    """Computing takes no time to speak of; a tenth of the elements are a byte each."""
    methods = {
        DENSE: work(4 * PARAMETERS, all_reduces=1),
        HALF: work(2 * PARAMETERS, all_reduces=1, half=True),
        EACH_STEP: work(0.1 * PARAMETERS),
        LOCAL: work(0.1 * PARAMETERS),
    }
    path = tmp_path / "calibration.json"
    path.write_text(measured(methods, PARAMETERS, 1e-4).model_dump_json())
    return path


@pytest.fixture(scope="module")
def kept():
    return []


@pytest.fixture
def probed_once(kept, monkeypatch):
    """A probe takes half a minute, and all that ask for one here ask for the same."""
    really = command.find

    def find(*asked, **more):
        if not kept:
            kept.append(really(*asked, **more))
        return kept[0]

    monkeypatch.setattr(command, "find", find)


def train(uri: str, steps: int | None = 100, status: str = "FINISHED") -> StandIn:
    """Leaves a run that came to its target after so many steps, or did not."""
    metrics = {names.EVAL_LOSS: 0.5, names.TOTAL_WIRE_GB: 0.001, names.TOTAL_SECONDS: 20.0}
    metrics |= {names.TOTAL_ITERATIONS_TO_TARGET: float(steps)} if steps else {}
    return StandIn(uri, lambda _: metrics, status)


# From the command line


@pytest.mark.usefixtures("probed_once")
def test_a_plan_alone_leaves_a_spec_that_can_be_trained(file, calibration, tmp_path, capsys):
    chosen = tmp_path / "chosen.yaml"
    arguments = ["--target", "loss=0.3", "--link", "1mbit,1ms", "--calibration", str(calibration)]
    arguments += ["--probe-seconds", "1e6"]  # however slow the machine
    assert cli.main(["auto", file, *arguments, "--plan-only", "-o", str(chosen)]) == OK
    printed = capsys.readouterr().out
    spec = read_spec(chosen)
    assert spec.training.until == {"loss": 0.3}
    assert isinstance(spec.sync, SimulatedSync)
    assert f"{spec.compressor}" in printed
    assert "times faster than a 16-bit all-reduce" in printed
    assert "chosen" in printed
    assert spec.sync.of.mode == "weights"


# With a stub in place of training


def request(calibration, **fields) -> TargetRequest:
    link = Link.parse("1mbit,1ms")
    given = {"metric": "loss", "value": 0.3, "link": link, "calibration": calibration, "probe_seconds": 1e6}
    return TargetRequest(**given | fields)


@pytest.mark.usefixtures("probed_once")
def test_the_chosen_way_is_trained_until_the_target(uri, calibration, capsys):
    trained = train(uri)
    assert run_auto_link(SPEC, "digits.yaml", request(calibration), trained) == OK
    (one,) = trained.specs
    assert one.training.until == {"loss": 0.3}
    assert one.compressor.kind == "strom"
    assert one.training.iterations == 240
    printed = capsys.readouterr().out
    assert "after 100 steps; predicted: " in printed
    (_artifact,) = [
        artifact.path
        for artifact in trained.client.list_artifacts(trained.run_id)
        if artifact.path == ARTIFACT
    ]
    text = Path(trained.client.download_artifacts(trained.run_id, ARTIFACT)).read_text()
    assert str(one.compressor).replace("|", "\\|") in text
    assert "| chosen |" in text


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize(
    ("fields", "said"), [({"steps": None}, "was not reached"), ({"status": "FAILED"}, "")]
)
def test_a_training_that_does_not_come_to_the_target_fails(uri, calibration, capsys, fields, said):
    assert run_auto_link(SPEC, "digits.yaml", request(calibration), train(uri, **fields)) == FAILED
    assert said in capsys.readouterr().out


# Beginnings of trainings


def test_a_beginning_in_two_parts_is_the_one_that_was_made_at_once(tmp_path):
    """Residuals, momentum, random numbers and the order of the examples go on where they were."""
    one = SPEC
    data = load(one.data)
    local = next(way for way in candidates_of(one) if way.every == 4).spec
    with probe_runs_of(one, data) as probe_runs:
        first = probe_runs.train(local, 12, 4)
        step_s = probe_runs.step_seconds(local)
        parts = probe_runs.train(local, 24, 4)
        assert (
            24 * probe_runs.step_seconds(local) > 12 * step_s > 0
        )  # all that it took; time does not run back
        assert probe_runs.train(local, 20, 4) == parts  # nothing is trained twice
    with probe_runs_of(one, data) as probe_runs:
        published = local.model_copy(update={"publish": PublishConfig(path=str(tmp_path / "weights"))})
        assert probe_runs.train(published, 24, 4) == parts
    assert not (tmp_path / "weights").exists()
    assert first.steps == (0, 4, 8, 12)
    assert parts.steps == (0, 4, 8, 12, 16, 20, 24)
    assert parts.losses[:4] == first.losses
    assert parts.losses[-1] < parts.losses[0]
