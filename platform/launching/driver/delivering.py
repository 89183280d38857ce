"""`taugrad deliver`: brings to the stores what they did not take during a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from ...places import is_bucket
from ...spec import COMMAND_LINE, SpecError
from ...tracking import names
from ...tracking.record import records_of
from ...tracking.run_lock import RunLock, end_run
from ...tracking.shipper import Shipper
from ...training.manifest import FILE, Unusable
from ..run_folder import RunFolder
from ..storage import above

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow.tracking import MlflowClient


def check_place(place: str) -> None:
    """Refuses what is not there, on this machine; raises SpecError."""
    path = Path(place)
    if not is_bucket(place) and not (path.is_file() or (path / FILE).is_file()):
        raise SpecError(COMMAND_LINE, f"FILE {place}: there is no such file, nor a checkpoint")


def deliver_metrics(
    place: str, run: str | None, open_store: "Callable[[], MlflowClient]", notify: "Callable[[str], None]"
) -> str:
    """Sends what is left of a run's journal, and how the run ended, to MLflow; again changes nothing.

    `place` is the file, or its address in a bucket; the name of its folder is the MLflow run where `run` is
    None. The store is opened when the file was read, and `notify` told what MLflow will never accept. Returns
    what was done, in one line.

    Raises SpecError: the store cannot be used; OSError: the file cannot be read; ValueError: there is none in
    the bucket, or it is none of undelivered metrics; and what the store raises when it does not answer. The
    file is still there then.
    """
    run_folder, name = above(place if is_bucket(place) else str(Path(place).absolute()))
    if not is_bucket(place):
        text = Path(place).read_text(encoding="utf-8")
    elif not (text := RunFolder.at(*above(run_folder)).text(name)):
        raise ValueError(f"FILE {place}: there is no such file")
    records, run_id = records_of(text, place), run or above(run_folder)[1]
    end = records[-1] if records and records[-1].ended else None
    if end is not None and end.run != run_id:
        raise ValueError(f"{place} is of run {end.run}, not of {run_id}")
    client = open_store()
    count = Shipper(client, run_id, notify, set()).ship(records)
    return f"{count} metrics delivered to run {run_id}, which is {end_run(client, run_id, end)}"


def is_checkpoint(place: str) -> bool:
    """Whether it is the folder of a checkpoint that a run's storage did not take."""
    return not is_bucket(place) and (Path(place) / FILE).is_file()


def deliver_checkpoint(place: Path, open_store: "Callable[[], MlflowClient]") -> str:
    """Puts a checkpoint's files that are on this machine where the run's checkpoints are.

    It is one when all its files are there; those that are on other machines go there from these. Returns what
    was done, in one line. Raises SpecError: the store cannot be used; Unusable: a file is damaged, or it is
    of no run; RunHeld: the run goes on at this moment; and what the stores raise when they do not answer:
    everything is still here.
    """
    place = place.absolute()
    iteration = int(place.name.removeprefix("iteration_")) if place.name[-8:].isdecimal() else -1
    run_id = place.parent.name
    kept = RunFolder.at(str(place.parent.parent), run_id)
    manifest, read = kept.manifest(iteration), kept.reader(iteration)
    if odd := [name for name in manifest.files if Path(name).name != name]:
        raise Unusable(f"its {FILE} names {odd[0]!r}, which is no file of a checkpoint")
    here = [name for name in manifest.files if (place / name).is_file()]
    for name in here:
        manifest.file(read, name)
    client = open_store()
    address = client.get_run(run_id).data.tags.get(names.TAG_CHECKPOINTS)
    if address is None:
        raise Unusable(f"run {run_id} does not say in MLflow where its checkpoints are")
    folder = RunFolder.at(*above(address))
    with RunLock(client, run_id):
        folder.reopen(iteration)
        for name in here:
            folder.put(iteration, place / name)
        there = {name: folder.size(iteration, name) for name in manifest.files}
        away = [name for name, digest in manifest.files.items() if there[name] != digest.size]
        if away:
            others = ", ".join(away)
            return f"{len(here)} files are in {folder.address}; {others} are on other machines: deliver them"
        folder.seal(manifest)
    return f"the checkpoint after iteration {iteration} is in {folder.address}, where --resume finds it"
