"""The section `training` of a spec: length, batch, precision, optimizer, learning rate."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..config import Config


class ConstantBatch(Config):
    """The batch is constant."""

    kind: Literal["constant"] = "constant"


class AdaBatch(Config):
    """The batch grows as the test error falls (Rae, section 2.5.1)."""

    kind: Literal["adabatch"] = "adabatch"
    most: int = Field(default=1024, ge=1)
    """The largest whole batch; `batch_size` is the first one."""
    measure: Literal["error", "loss"] = "error"
    """What is compared with that of the untrained model: the share of wrong test examples, or the test
    loss."""
    form: Literal["formula", "text"] = "formula"
    """With q the untrained model's error over the current error: formula doubles the batch floor(q) - 1
    times; text, the paper's text, doubles it each time the error has halved, floor(log2(q)) times."""


class Stage(Config):
    """A first part of the run."""

    until: float = Field(gt=0, allow_inf_nan=False)
    """Epochs from the start of the run; the stage has the steps that begin before."""
    batch_size: int = Field(ge=1)
    """The whole batch of one step."""
    workers: int | None = Field(default=None, ge=1)
    """How many workers share it, the first ones; the others wait. Without it, all of them."""


class Stages(Config):
    """Smaller batches and fewer workers at first (Strom 2015, table 1); then `batch_size` and all workers."""

    kind: Literal["staged"] = "staged"
    stages: tuple[Stage, ...]
    """A list of stages, each with `until` (epochs from the start of the run), `batch_size` and, if some
    workers wait, `workers`."""

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        if not stages:
            raise ValueError("needs at least one stage; without stages, use kind: constant")
        for number, (before, after) in enumerate(pairwise(stages), start=1):
            if after.until <= before.until:
                raise ValueError(
                    f"stage {number}: until = {after.until:g}; must be above {before.until:g}, "
                    f"which is that of stage {number - 1}"
                )
        return stages


BatchGrowthConfig = Annotated[ConstantBatch | AdaBatch | Stages, Field(discriminator="kind")]


Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Sgd(Config):
    """Stochastic gradient descent with momentum."""

    kind: Literal["sgd"] = "sgd"
    lr: Rate = 0.01
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: Decay = 5e-4


class Adam(Config):
    """Adam, or with decoupled weight decay AdamW."""

    kind: Literal["adam", "adamw"] = "adam"
    lr: Rate = 1e-3
    weight_decay: Decay = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """How much of the running averages of gradients and of their squares is kept at each step."""
    eps: Rate = 1e-8
    """Added to the root of the average of squares."""
    freeze: int = Field(default=0, ge=0)
    """Number of steps after which the average of squares stays fixed (1-bit Adam, arXiv 2102.02888); 0:
    never. For gradients that are sent rarely, after a warm-up with uncompressed ones."""


class Lars(Config):
    """SGD whose rate follows the norms of each tensor and of its gradient (You, Gitman and Ginsburg 2017)."""

    kind: Literal["lars"] = "lars"
    lr: Rate = 0.1
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: Decay = 5e-4
    trust: float = Field(default=0.02, gt=0, allow_inf_nan=False)
    """The trust coefficient: the share of a tensor's norm by which a step changes the tensor at learning rate
    1. Vectors, such as biases, train as with SGD, without decay."""


class Lamb(Config):
    """Adam with a trust ratio for each tensor (Rae, section 2.5; You et al. 2019)."""

    kind: Literal["lamb"] = "lamb"
    lr: Rate = 1e-2
    weight_decay: Decay = 0.0


class Muon(Config):
    """Orthogonal momentum for matrices of hidden layers, scaled to AdamW's rates; AdamW for the rest."""

    kind: Literal["muon"] = "muon"
    lr: Rate = 1e-3
    momentum: Beta = 0.95
    weight_decay: Decay = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.999)


OptimizerConfig = Annotated[Sgd | Adam | Lars | Lamb | Muon, Field(discriminator="kind")]


class ConstantRate(Config):
    """The learning rate is constant."""

    kind: Literal["constant"] = "constant"


class _Every(Config):
    epochs: int = Field(default=10, ge=1)
    """Epochs between two changes, counted from the start of the run."""
    iterations: int = Field(default=0, ge=0)
    """Iterations between two changes, instead of epochs; 0: use epochs. With cosine: iterations until it has
    fallen; 0: all of the run."""


class StepDecay(_Every):
    """The learning rate is multiplied by `factor` every `epochs` epochs."""

    kind: Literal["step"] = "step"
    factor: float = Field(default=0.1, gt=0, le=1)


class Halving(_Every):
    """The learning rate is halved every `epochs` epochs."""

    kind: Literal["halving"] = "halving"


class Cosine(Config):
    """The learning rate falls along half a cosine, from the end of the warm-up to the end of the run."""

    kind: Literal["cosine"] = "cosine"
    final: float = Field(default=0.1, ge=0, le=1)
    """Factor of the learning rate at the end."""
    iterations: int = Field(default=0, ge=0)
    """After how many iterations it has fallen; 0: at the run's last one."""


class ExponentialDecay(Config):
    """The learning rate is multiplied by `factor` after every epoch."""

    kind: Literal["exponential"] = "exponential"
    factor: float = Field(default=0.95, gt=0, le=1)


ScheduleConfig = Annotated[
    ConstantRate | StepDecay | Halving | ExponentialDecay | Cosine, Field(discriminator="kind")
]


class WarmUp(Config):
    """The learning rate rises linearly to what it is without a warm-up."""

    epochs: float = Field(default=0, ge=0, allow_inf_nan=False)
    """Length of the warm-up in epochs; 0 for this and `iterations`: no warm-up."""
    iterations: int = Field(default=0, ge=0)
    """Length of the warm-up in iterations, instead of epochs."""
    start: float = Field(default=0.1, gt=0, le=1)
    """Factor of the learning rate in the first iteration."""

    @model_validator(mode="after")
    def _one_length(self) -> "WarmUp":
        if self.epochs and self.iterations:
            raise ValueError(
                f"epochs = {self.epochs:g} and iterations = {self.iterations}: "
                "give one of them, and 0 for the other"
            )
        return self


class Pretraining(Config):
    """Layers are trained one after the other before the run, without communication (Strom 2015, section 3.3).

    The first hidden layer with an output layer of its own, then the first two with another one, until the
    model is whole. For models that are one stack of layers: `mlp` and `sigmoid_stack`.
    """

    iterations: int = Field(default=0, ge=0)
    """Iterations for each hidden layer; 0: no pre-training."""
    examples: float = Field(default=0.1, gt=0, le=1)
    """Share of the training examples to use."""
    batch_size: int = Field(default=64, ge=1)
    lr: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Learning rate, of plain SGD."""


class NoScaling(Config):
    """The learning rate does not depend on the batch."""

    kind: Literal["none"] = "none"


class Scaling(Config):
    """The learning rate is multiplied by k or by sqrt(k) (Krizhevsky 2014)."""

    kind: Literal["linear", "sqrt"]
    by: Literal["batch", "workers"] = "batch"
    """What k counts: the current whole batch, as it grows, or the workers."""
    reference: int | None = Field(default=None, ge=1)
    """The batch, or number of workers, for which `optimizer.lr` is right; k is the current one over this.
    Default: `batch_size`, or 1 worker."""


ScalingConfig = Annotated[NoScaling | Scaling, Field(discriminator="kind")]


class Clip(Config):
    """Gradient clipping."""

    norm: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The largest norm of the gradient of all parameters together; 0: no clipping."""
    of: Literal["mean", "worker"] = "mean"
    """mean: clip the mean that all workers agreed on. worker: clip each worker's own gradient before
    compression, to norm / sqrt(workers), as Deep Gradient Compression does (Lin et al. 2018, section 3.2)."""


class TrainingConfig(Config):
    """How long and how fast to train."""

    epochs: int = Field(default=10, ge=1)
    iterations: int | None = Field(default=None, ge=1)
    """Number of iterations to train, instead of epochs."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Iterations between two evaluations. Without it, there is one at the end of every epoch. There is always
    one at the end of the run."""
    evaluation_block: int = Field(default=250, ge=1)
    """Number of test examples that go through the model at once. Another number may change the last bits of a
    loss."""
    until: dict[str, float] = Field(default={})
    """Metrics and the values at which to stop early, such as {accuracy: 0.95}. All of them must be
    reached."""
    batch_size: int = Field(default=64, ge=1)
    """The whole batch of a step, which all workers share (Anoosheh, section 2.2)."""
    batch_per_worker: int | None = Field(default=None, ge=1)
    """Number of examples per worker and step; `batch_size` is then this times `workers.count`."""
    accumulate: int = Field(default=1, ge=1)
    """Gradient accumulation: number of parts into which a worker's batch is cut. They go through the model
    one after the other, which takes less memory for the same step."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the forward and backward pass (autocast). Weights and the exchange stay in float32. fp16
    scales the loss; if a step overflows, all workers skip it, and nothing is lost."""
    compile: bool = False
    """Whether to speed up the model with torch.compile. Its first iterations take longer."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Whether a worker's gradient is that of the mean of its examples' losses, or of their sum, as some
    papers' thresholds expect. Adapt the learning rate."""
    clip: Clip = Clip()
    batch_growth: BatchGrowthConfig = ConstantBatch()
    optimizer: OptimizerConfig = Sgd()
    schedule: ScheduleConfig = ConstantRate()
    l1: Decay = 0.0
    """Factor of an l1 term of the loss: each step adds l1 * sign(w) to the gradient that the optimizer gets
    (Oland and Raj 2015, section 2). As with weight decay, the term is not sent. 0: none."""
    l1_schedule: ScheduleConfig = ConstantRate()
    """How `l1` changes during the run; `schedule` does not change it."""
    l1_exempt: tuple[str, ...] = ()
    """Patterns of names of parameters without the l1 term, such as ["*.bias"]."""
    warmup: WarmUp = WarmUp()
    scaling: ScalingConfig = NoScaling()
    pretraining: Pretraining = Pretraining()
    find_unused_parameters: bool = False
    """For models that do not use all parameters in every step (DDP's option of the same name)."""

    @property
    def largest_batch(self) -> int:
        """The most examples that a whole batch may have."""
        match self.batch_growth:
            case AdaBatch(most=most):
                return most
            case Stages(stages=stages):
                return max(self.batch_size, *(stage.batch_size for stage in stages))
            case _:
                return self.batch_size

    @field_validator("scaling")
    @classmethod
    def _decay_can_be_scaled(cls, scaling: ScalingConfig, info: ValidationInfo) -> ScalingConfig:
        optimizer = info.data.get("optimizer")
        if isinstance(scaling, Scaling) and optimizer is not None and decays_weights(optimizer):
            shrinking = optimizer.lr * optimizer.weight_decay
            if shrinking >= 1:
                raise ValueError(
                    f"optimizer.lr * optimizer.weight_decay = {shrinking:g}: must be below 1, "
                    "or no step has the decay of k steps"
                )
        return scaling


def decays_weights(optimizer: OptimizerConfig) -> bool:
    """Whether a step multiplies the weights by 1 - lr * weight_decay: its decay is scaled with the batch."""
    return isinstance(optimizer, Sgd | Muon) or (isinstance(optimizer, Adam) and optimizer.kind == "adamw")
