"""The pictures of docs/ that show runs: `python docs/make_images.py [FOLDER]`.

Trains 26 runs in FOLDER, or in a folder of its own that goes away; runs that lie in FOLDER already are not
trained again. Replaces mlflow_view.png, report.png and accuracy_by_setting.png in docs/images and the lines
under them in dashboards.md. Needs playwright and chromium, and 10 minutes on 2 cores.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from taugrad.dashboards import prepare
from taugrad.dashboards.figures import save
from taugrad.dashboards.groups import Group, by_setting
from taugrad.dashboards.report import write_report
from taugrad.dashboards.runs import all_runs, compared_runs
from taugrad.dashboards.serving import mlflow_server
from taugrad.dashboards.shared_view import view_url
from taugrad.dashboards.sweeps import value_by_setting
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import find_experiment
from taugrad.platform.tracking.store import open_client, tracking_uri

IMAGES = Path(__file__).parent / "images"
PAGE = Path(__file__).parent / "dashboards.md"
CAPTION = re.compile(r"(?<=<!-- images: begin -->\n\n).*?(?=\n\n<!-- images: end -->)", re.DOTALL)
EXPERIMENT, EPOCHS = "readme", 8
SETTINGS = {
    "none": (0, 1, 2),
    "bgt(tau=0.05)": (0, 1, 2),
    "qgt(tau=0.01)": (0, 1, 2),
    "wgt(tau=0.01)": (0, 1, 2),
    **dict.fromkeys(("bgt(tau=0.02)", "bgt(tau=0.1)", "qgt(tau=0.004)", "qgt(tau=0.03)"), (0,)),
    **dict.fromkeys(("wgt(tau=0.002)", "wgt(tau=0.03)", "linear(bits=8)"), (0,)),
    **dict.fromkeys(("strom(tau=0.02)", "strom(tau=0.05)", "strom(tau=0.1)"), (0,)),
    **dict.fromkeys((f"entropy(floor={floor}) | huffman" for floor in (1, 2, 3, 4)), (0,)),
}
"""Methods, with the seeds that each is trained with."""
SHOWN = "bgt(tau=0.05)"
"""The method that the caption speaks of."""
TIMEOUT_MS = 180_000
SETTLE_MS = 10_000  # lines arrive after their axes


def main(folder: Path) -> None:
    """Trains what is missing, and writes all pictures."""
    os.chdir(folder)
    train()
    client = open_client(tracking_uri())
    experiment_id = find_experiment(client, EXPERIMENT)
    groups = by_setting(compared_runs(all_runs(client, experiment_id)))
    save(value_by_setting(groups), IMAGES / "accuracy_by_setting.png")
    PAGE.write_text(CAPTION.sub(caption(groups), PAGE.read_text("utf-8")), "utf-8")
    (view, *_) = prepare.prepare(client, experiment_id)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(TIMEOUT_MS)
        with mlflow_server(client.tracking_uri, folder / "log") as url:
            page.goto(view_url(url, experiment_id, view.key))
            # MLflow's chat panel opens by itself on a first visit.
            page.locator('[data-component-id="mlflow.assistant.chat_panel.close"]').click(force=True)
            page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length >= 2")
            page.wait_for_timeout(SETTLE_MS)
            keep(page, "mlflow_view")
        report = write_report(client, EXPERIMENT, experiment_id, folder, prepare.LOCAL_SERVER)
        page.set_viewport_size({"width": 1100, "height": 760})
        page.goto(report.as_uri())
        keep(page, "report")
        browser.close()


def train() -> None:
    """Trains every setting with each of its seeds, in this folder."""
    if Path("mlflow.db").exists():
        return
    specs = []
    for number, (line, seeds) in enumerate(SETTINGS.items()):
        for seed in seeds:
            path = Path(f"{number:02}-{seed}.yaml")
            path.write_text(
                f"experiment: {EXPERIMENT}\nseed: {seed}\ncompressor: {line}\n"
                f"training: {{epochs: {EPOCHS}}}\n",
                "utf-8",
            )
            specs.append(str(path))
    subprocess.run([sys.executable, "-m", "taugrad", "train", *specs], check=True)


def caption(groups: list[Group]) -> str:
    """What is under the pictures."""
    bare = next(group for group in groups if group.is_baseline)
    shown = next(group for group in groups if group.name == SHOWN)
    runs = sum(len(group.runs) for group in groups)
    several = sum(len(seeds) > 1 for seeds in SETTINGS.values())
    today = datetime.now(UTC).date().isoformat()
    less = _mean(bare, names.TOTAL_WIRE_GB) / _mean(shown, names.TOTAL_WIRE_GB)
    return (
        f"(The pictures on this page show {runs} runs of LeNet on 5,000 MNIST digits, {EPOCHS} epochs,\n"
        f"2 workers, three seeds for {several} settings and one for the others.\n"
        f"`python docs/make_images.py` made them on {today}, AMD EPYC, 2 cores.\n"
        f"`bgt` at tau 0.05 sends {less:,.0f} times less than float32\n"
        f"({less / 2:,.0f} times less than 16 bits) at {100 * _mean(shown, names.EVAL_ACCURACY):.2f}%; "
        "without\ncompression it is "
        f"{100 * _mean(bare, names.EVAL_ACCURACY):.2f}%.)"
    )


def _mean(group: Group, metric: str) -> float:
    found = group.estimate(metric)
    assert found is not None
    return found.mean


def keep(page: Page, name: str) -> None:
    """A picture of what is in sight."""
    page.screenshot(path=IMAGES / f"{name}.png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="taugrad-") as place:
            main(Path(place))
