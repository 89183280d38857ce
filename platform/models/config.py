"""Which network to train."""

from typing import Annotated, Literal

from pydantic import Field

from ..config import Config
from ..data.config import ImportPath

Activation = Literal["relu", "tanh", "sigmoid", "gelu"]
Width = Annotated[int, Field(ge=1)]


class LeNet(Config):
    """Caffe's LeNet: convolutions of 20 and 50 maps, a layer of 500; 431,080 parameters at 28 x 28.

    Images below 16 x 16 are surrounded by zeros up to that size.
    """

    kind: Literal["lenet"] = "lenet"


class Mlp(Config):
    """A fully connected net; Oland and Raj use widths 392, 50 and tanh."""

    kind: Literal["mlp"] = "mlp"
    widths: list[Width] = Field(default=[392, 50])
    """The hidden layers' widths."""
    activation: Activation = "relu"


class NetworkInNetwork(Config):
    """Network in Network (Lin et al. 2013), the 32 x 32 form; smaller images work as well."""

    kind: Literal["nin"] = "nin"
    dropout: float = Field(default=0.5, ge=0, lt=1)
    width_multiplier: float = Field(default=1.0, gt=0, le=4)
    """Scales every hidden layer's number of maps (192, 160, 96)."""


class CustomModel(Config):
    """Your own network: a function that returns a torch.nn.Module.

    It is called with `arguments` and, as keywords, what the data say: channels, height, width and classes of
    images, positions and vocabulary of text.
    """

    kind: Literal["custom"] = "custom"
    factory: ImportPath
    """package.module:function"""
    arguments: dict[str, str | int | float | bool] = Field(default={})
    """Further keyword arguments for the function."""


ModelConfig = Annotated[LeNet | Mlp | NetworkInNetwork | CustomModel, Field(discriminator="kind")]
