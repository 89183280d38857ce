"""The spec: everything that defines a run, as one tree of pydantic models.

Each part of the platform owns its own branch; this module only joins them.
"""

import hashlib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from taugrad.compressors.methods import CompressorConfig, NoCompression

from ..config import Config
from ..places import RUNS, OutputAddress, OutputPath
from .data import DataConfig, Mnist5k
from .models import LeNet, Mlp, ModelConfig, SigmoidStack
from .synchronization import GradientsSync, SyncConfig, WeightsSync, real
from .tasks import Classification, TaskConfig
from .training import AdaBatch, TrainingConfig
from .validation import Asked, check_sync
from .workers import WorkersConfig, check_elastic

_NAME_LENGTH = 200
"""MLflow's databases keep 250 characters of a name."""


def import_extensions(modules: Iterable[str]) -> None:
    """Imports modules that register methods of their own; raises ValueError for one that cannot be."""
    for module in modules:
        try:
            import_module(module)
        except Exception as error:  # whatever a user's module raises
            raise ValueError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error


class TrackingConfig(Config):
    """What is logged to MLflow, and how often."""

    layer_interval: int = Field(default=50, ge=1)
    """Iterations between two records of every layer's fraction, tau, bits and gradient statistics. The first
    ten iterations are always recorded. With local steps, the first exchanges from then on are."""
    flush_interval: int = Field(default=20, ge=1)
    """Iterations between two averages over the workers. Metrics reach MLflow with this delay. In the mode
    async, averages are taken at evaluations and checkpoints."""
    timeline: int = Field(default=3, ge=0, le=100)
    """Number of steps, after a process's first ten, to record in the artifact timeline.json, which shows what
    each worker computed and waited for; 0: none. Simulated workers have no timeline."""


class CheckpointConfig(Config):
    """When to save everything that a run needs to continue."""

    interval: int | None = Field(default=None, ge=1)
    """Iterations between two checkpoints; by default, there are five in a run."""
    keep: int = Field(default=2, ge=1)
    """Number of checkpoints to keep."""


class PublishConfig(Config):
    """Where the agreed weights are published as patches, for servers and others that follow a run."""

    path: OutputAddress = ""
    """A folder, or a bucket's address; empty: weights are not published."""
    every: int = Field(default=10, ge=1)
    """Iterations between two publications, in the background; the last weights are always published. While
    one is being written, others are left out. In the mode async and with a quorum, weights are published
    after evaluations and checkpoints: workers agree on them there."""
    full_every: int = Field(default=50, ge=1)
    """Patches from one whole snapshot to the next."""
    keep: int | None = Field(default=None, ge=1)
    """Number of snapshots to keep, with the patches that follow them; by default all."""


class RunSpec(Config):
    """One training run."""

    name: str = Field(default="", max_length=_NAME_LENGTH)
    """The run's name in tables and in MLflow; empty: the compressor's line."""
    experiment: str = Field(default="taugrad", min_length=1, max_length=_NAME_LENGTH)
    """The MLflow experiment that the run belongs to."""
    paper: str | None = None
    """The paper that the run repeats, as a tag for the dashboards."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Decides everything random: initial weights, order of the examples, dropout."""
    extensions: tuple[str, ...] = ()
    """Modules to import first, such as [mine] of a file mine.py in this folder: they register methods."""
    task: TaskConfig = Classification()
    model: ModelConfig = LeNet()
    data: DataConfig = Mnist5k()
    training: TrainingConfig = TrainingConfig()
    compressor: CompressorConfig = NoCompression()
    sync: SyncConfig = GradientsSync()
    workers: WorkersConfig = WorkersConfig()
    tracking: TrackingConfig = TrackingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    publish: PublishConfig = PublishConfig()
    storage: OutputPath = Path(RUNS)
    """Where to write checkpoints; a shared folder or bucket if workers are on several machines."""

    @field_validator("extensions")
    @classmethod
    def _import(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        import_extensions(modules)
        return modules

    @model_validator(mode="after")
    def _possible(self) -> "RunSpec":
        training, workers = self.training, self.workers
        check_sync(Asked(self.sync, self.compressor, training, workers.count))
        check_elastic(self.sync, self.compressor, self.workers)
        if training.pretraining.iterations and not isinstance(self.model, Mlp | SigmoidStack):
            raise ValueError(
                f"training.pretraining.iterations = {training.pretraining.iterations} with model.kind = "
                f"{self.model.kind}: layers are pre-trained in one stack of them; use 0, or model.kind: mlp "
                "or sigmoid_stack"
            )
        if training.precision == "fp16" and self.compressor.brings_exchange:
            raise ValueError(
                "training.precision = fp16: gradients may overflow, which compressor.kind = "
                f"{self.compressor.kind} cannot "
                "leave out; choose bf16, or another compressor"
            )
        if training.batch_per_worker is not None:
            whole = training.batch_per_worker * self.workers.count
            object.__setattr__(self, "training", training.model_copy(update={"batch_size": whole}))
        growth, first = training.batch_growth, self.training.batch_size
        if isinstance(growth, AdaBatch) and growth.most < first:
            batch = "batch_per_worker x workers.count" if training.batch_per_worker else "batch_size"
            limit = f"must be at least training.{batch}, which is {first}"
            raise ValueError(f"training.batch_growth.most = {growth.most}: {limit}")
        return self

    @property
    def processes(self) -> int:
        """How many processes train: one for all workers where these are simulated."""
        return 1 if self.sync.is_simulated else self.workers.count

    @property
    def title(self) -> str:
        """The run's name, or its compressor's line, cut to a name's length."""
        return self.name or str(self.compressor)[:_NAME_LENGTH]

    def flat(self) -> dict[str, str]:
        """Every field by its dotted name, as MLflow params."""
        left_out: dict[str, Any] = {"sync": _in_sync(self._left_out)}
        if not self.extensions:
            left_out["extensions"] = True
        if not self.publish.path:
            left_out["publish"] = True
        return dict(_flatten(self.model_dump(mode="json", exclude=left_out)))

    @property
    def _left_out(self) -> set[str]:
        """Groups of fields that a `sync` may have and this one has not."""
        mode = real(self.sync)
        fields = ("downlink", "quorum", "deadline", "schedule", "island")
        left_out = {field for field in fields if getattr(mode, field, None) is None}
        if isinstance(mode, WeightsSync):
            left_out |= set() if mode.delay_steps else {"delay_steps", "blend"}
            left_out |= {"fragments"} if mode.fragments == 1 else set()
            left_out |= set() if mode.offload else {"offload"}
        if getattr(mode, "island", None) is None:
            left_out.add("island_reduce")
        return left_out

    def fingerprint(self) -> str:
        """Twelve hex digits: equal for two specs that define the same computation, wherever it is kept."""
        defining = self.model_copy(update={"name": "", "experiment": "taugrad", "storage": Path()})
        excluded: dict[str, Any] = {  # what changes no result
            "extensions": True,
            "publish": True,
            "tracking": {"timeline"},
            "workers": {"on_resize", "min_count"},
            "sync": _in_sync({"authenticated", "offload"}),
        }
        text = defining.model_dump_json(exclude=excluded)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _in_sync(fields: set[str]) -> dict[str, Any]:
    """To leave fields out of a `sync`, or of what is simulated."""
    return {**dict.fromkeys(fields, True), "of": fields}


def _flatten(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat += _flatten(value, f"{prefix}{key}.")
        else:
            flat.append((prefix + key, str(value)))
    return flat
