"""How to train: epochs, batch, optimizer, learning rate."""

from typing import Annotated, Literal

from pydantic import Field

from ..config import Config

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


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


OptimizerConfig = Annotated[Sgd | Adam, Field(discriminator="kind")]


class ConstantRate(Config):
    """The learning rate stays what it is."""

    kind: Literal["constant"] = "constant"


class StepDecay(Config):
    """The learning rate is multiplied by `factor` every `epochs` epochs."""

    kind: Literal["step"] = "step"
    epochs: int = Field(default=10, ge=1)
    factor: float = Field(default=0.1, gt=0, le=1)


ScheduleConfig = Annotated[ConstantRate | StepDecay, Field(discriminator="kind")]


class TrainingConfig(Config):
    """How long and how fast to train."""

    epochs: int = Field(default=10, ge=1)
    batch_size: int = Field(default=64, ge=1)
    """The whole batch of one step; the workers share it (Anoosheh, section 2.2)."""
    optimizer: OptimizerConfig = Sgd()
    schedule: ScheduleConfig = ConstantRate()
    find_unused_parameters: bool = False
    """For models that leave parameters out of some steps (DDP's switch of the same name)."""
