"""How the workers agree: who sends what to whom, and when."""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from taugrad.compressors.local_fields import LocalFields
from taugrad.compressors.methods import CompressorConfig, read_config
from taugrad.compressors.methods.dense import DenseSymbols
from taugrad.compressors.pattern_names import PatternName

from ..config import Config

SiteRanks = tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]


Exchanged = Literal["buckets", "weights", "activations", "updates"]
"""What workers send to one another: buckets of gradients during the backward pass, weights or their
differences after local steps, activations as well as gradients, updates that nobody waits for."""

Resizing = Literal["merged", "cut", "never"]
"""What a checkpoint needs for another number of workers. merged: residuals are merged, if the spec allows it.
cut: every layer is cut anew. never: it cannot be done."""


class _Mode(Config):
    """What one can ask of any mode, without knowing which one it is."""

    exchanges: ClassVar[Exchanged]
    is_simulated: ClassVar[bool] = False
    resizing: ClassVar[Resizing] = "merged"

    authenticated: bool = False
    """Encrypt messages, and refuse connections that do not have the run's key. Workers take the key from
    TAUGRAD_KEY_FILE, or TAUGRAD_KEY, in their environment; it is not a field."""

    @property
    def is_local(self) -> bool:
        """Whether workers take steps of their own between exchanges."""
        return self.exchanges == "weights"

    @property
    def local_steps(self) -> int:
        """Steps from one exchange to the next; 0: an epoch."""
        return int(getattr(self, "every", 1))

    @property
    def outer_momentum(self) -> float:
        """Momentum of what applies the mean of the workers' differences; 0 without differences."""
        return float(getattr(getattr(self, "outer", None), "momentum", 0.0))

    @property
    def pattern_name(self) -> str:
        """Who sends to whom: a `PatternName`, or the mode where it has none."""
        return str(getattr(self, "pattern", getattr(self, "mode", "")))

    @property
    def gathers_buckets(self) -> bool:
        """Whether each worker's buckets go to all others; without compression, through torch's all-reduce."""
        return self.exchanges == "buckets" and self.pattern_name in ("allgather", "hierarchical")

    @property
    def site_ranks(self) -> SiteRanks | None:
        """The ranks of each site, where the mode has sites and the spec names them."""
        return getattr(self, "sites", None)

    @property
    def asks_for_hosts(self) -> bool:
        """Whether it goes by who is on which host, which only the workers know."""
        by_host = self.pattern_name == "hierarchical" or getattr(self, "island", None) == "host"
        return by_host and self.site_ranks is None


class _WithDownlink(_Mode):
    downlink: CompressorConfig | None = None
    """What sums are compressed with on their way to the workers, with a residual of their own; by default
    as gradients are, without momentum. For the patterns parameter_server and sharded, and hybrid."""


class GradientsSync(_WithDownlink):
    """A DDP hook exchanges gradients bucket by bucket, beside the backward pass."""

    exchanges: ClassVar[Exchanged] = "buckets"

    mode: Literal["gradients"] = "gradients"
    pattern: PatternName = "allgather"
    """Who sends to whom. allgather: every worker to every other one. hierarchical: once to each other site of
    workers, where a worker forwards messages. sharded: to the worker that sums a part, and back.
    parameter_server: to worker 0 and back (Oland-Raj's master). ring: partial sums from worker to worker,
    compressed anew at each hop. collective: as sharded, by torch's collectives, in fixed sizes."""
    sites: SiteRanks | None = None
    """For hierarchical: the ranks of each site, such as [[0, 1], [2, 3]]. By default, the workers on one node
    are a site; a simulation needs this field. For island = host likewise those of each host."""
    island: int | Literal["host"] | None = None
    """Islands of workers with fast links: FSDP2 shards the model over an island, and reduces gradients there
    in whole. What the compressor makes of an island's mean goes to the other islands. A number: that many
    workers, with consecutive ranks; host: those of a node."""
    island_reduce: Literal["fp32", "bf16"] = "fp32"
    """Precision in which gradients are reduced inside an island: 32 or 16 bits."""

    @field_validator("island", mode="before")
    @classmethod
    def _several(cls, island: Any) -> Any:
        if island in (None, "host") or (str(island).isdecimal() and int(island) > 1):
            return island
        raise ValueError("give a number of workers, 2 or more, or host")


class Deadline(Config):
    """How long a round waits for workers beyond its quorum."""

    factor: float = Field(default=3.0, ge=1, allow_inf_nan=False)
    """The deadline as a multiple of the time that a quorum usually takes (the median of the last 16
    rounds)."""
    least: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The shortest deadline in seconds; also how long the next worker waits before it closes the round
    instead of one that does not."""
    most: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """The longest deadline in seconds, which also applies in the first rounds."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least = {self.least:g}: must be at most deadline.most = {self.most:g}")
        return self


Chance = Annotated[float, Field(ge=0, lt=1)]


class RoundSchedule(Config):
    """A made-up course of rounds: who is late, away or lost, the same wherever it is computed."""

    late: Chance = 0.0
    """Probability that a worker is late for a round: it makes some of its steps, and is left out."""
    away: Chance = 0.0
    """Probability that a worker goes away in a round: it receives nothing for some rounds, and then comes
    back with what it has not sent."""
    lost: Chance = 0.0
    """Probability that a worker is lost in a round, with what it has not sent; a new worker joins in its
    place."""
    rounds: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (1, 3)
    """The smallest and the largest number of rounds that a worker is away or lost."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random choices."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.rounds[0] > self.rounds[1]:
            raise ValueError(f"rounds = {[*self.rounds]}: the fewest come first")
        if self.late + self.away + self.lost > 1:
            raise ValueError("late + away + lost: must be at most 1")
        return self


class WeightsSync(LocalFields, _WithDownlink):
    """Workers train alone, and now and then exchange weights or how far these have moved."""

    exchanges: ClassVar[Exchanged] = "weights"

    mode: Literal["weights"] = "weights"
    every: int = Field(default=0, ge=0)
    """Steps between two exchanges; 0: one at the end of each epoch (Oland-Raj, section 2)."""
    sites: SiteRanks | None = None
    """For hierarchical: the ranks of each site, as in the mode gradients."""
    fragments: int = Field(default=1, ge=1)
    """Parts of the model that are exchanged one after the other, each every `every` steps (Streaming DiLoCo,
    arXiv 2501.18512): a smaller message, more often."""
    quorum: float | None = Field(default=None, gt=0.5, le=1)
    """The share of all workers with which a round may close. Workers that are late or stopped are left out,
    and catch up. By default, every round waits for all workers."""
    deadline: Deadline | None = None
    """With a quorum: how long a round waits for the other workers."""
    schedule: RoundSchedule | None = None
    """With a quorum: who is late, away or lost when, in a simulation; real workers do the same then, and come
    to its bits."""


class HybridSync(_WithDownlink):
    """Data-parallel convolutions, model-parallel fully connected layers (Krizhevsky 2014)."""

    exchanges: ClassVar[Exchanged] = "activations"
    resizing: ClassVar[Resizing] = "cut"

    mode: Literal["hybrid"] = "hybrid"
    scheme: Literal["a", "b", "c"] = "b"
    """Whose examples go through the fully connected layers together. a: those of all workers at once. b:
    those of one worker after the other, while the next ones are on their way. c: as b, but each turn has 1/K
    of every worker's."""
    activations: str = "fp32"
    """How activations and their gradients are sent: fp32, bf16, or a dense method of symbols (linear,
    quantile, entropy, fp8) as a line, such as linear(8) or entropy(floor=5) | huffman. A message is of one
    tensor; no error is kept."""
    fc_batch: Literal["joined", "per_worker"] = "joined"
    """The batch of a step of the fully connected layers. joined: the whole batch. per_worker: the examples of
    one turn, so that these layers take K steps while the convolutions take one; learning rate and decay
    follow their own batch (training.scaling)."""

    @field_validator("activations")
    @classmethod
    def _dense(cls, line: str) -> str:
        if line in ("fp32", "bf16"):
            return line
        valid = "give fp32, bf16, or linear, quantile, entropy or fp8 as a line, such as linear(8)"
        try:
            method = read_config(line)
        except ValueError as error:
            raise ValueError(f"{error}; {valid}") from None
        if not isinstance(method, DenseSymbols):
            raise ValueError(f"{method.kind} does not send every value as a symbol; {valid}")
        if unused := {"decay", "exempt", "reduction", "nonfinite"} & method.model_fields_set:
            raise ValueError(f"{sorted(unused)[0]} is for gradients; leave it out")
        if getattr(method, "form", "") == "rms":
            raise ValueError("form = rms needs a layer's gradients; use form = entropy")
        return line


StepTime = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class AsyncSync(_Mode):
    """Every worker sends its updates to all others and waits for nobody (Strom 2015)."""

    exchanges: ClassVar[Exchanged] = "updates"
    resizing: ClassVar[Resizing] = "never"

    mode: Literal["async"] = "async"
    most_behind: int = Field(default=8, ge=0)
    """How many steps a worker may be ahead of what it has received from any other worker, before it waits. 0:
    before each step, it waits for the others' messages of the previous step."""
    dead_after: float = Field(default=60, gt=0, allow_inf_nan=False)
    """Seconds without a sign of life after which a worker counts as dead. A worker whose process has ended is
    dead at once."""
    on_dead: Literal["restart", "wait"] = "restart"
    """What to do about a worker that gives no sign of life. restart: end the run, and continue from its last
    checkpoint as often as `workers.max_restarts` allows. wait: wait for the worker, unless its process has
    ended."""
    follow_schedule: bool = False
    """Whether real workers apply messages exactly when a simulation of the mode would, and so end with the
    same bits, whatever their speed. The fields below define this schedule."""
    step_times: tuple[StepTime, ...] = ()
    """Schedule: how long a step of each worker takes, such as [1, 1, 1, 4]; by default, all take 1."""
    delay: tuple[Delay, Delay] = (0.0, 0.0)
    """Schedule: the shortest and the longest time that a message takes; a step takes 1."""
    schedule_seed: int = Field(default=0, ge=0)
    """Schedule: seed of the delays."""


_Real = GradientsSync | WeightsSync | HybridSync | AsyncSync
RealSync = Annotated[_Real, Field(discriminator="mode")]


class SimulatedSync(Config):
    """All workers in one process, one after the other: the same weights, bit for bit, without a cluster."""

    is_simulated: ClassVar[bool] = True

    mode: Literal["simulated"] = "simulated"
    of: RealSync = GradientsSync()
    """What is simulated."""


SyncConfig = Annotated[_Real | SimulatedSync, Field(discriminator="mode")]


def pattern_of_mode(mode: str) -> str:
    """What to write in place of a mode that is a pattern of the mode gradients; empty for any other."""
    if mode == "allgather":
        return "{mode: gradients}"
    return f"{{mode: gradients, pattern: {mode}}}" if mode in get_args(PatternName) else ""


def real(sync: SyncConfig) -> RealSync:
    """The mode itself, or what is simulated."""
    return sync.of if isinstance(sync, SimulatedSync) else sync


def in_mode(sync: SyncConfig, mode: RealSync) -> SyncConfig:
    """Another mode in place of one, simulated where that is."""
    return SimulatedSync(of=mode) if isinstance(sync, SimulatedSync) else mode
