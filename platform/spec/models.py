"""Which network to train."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ..config import Config
from .data import ImportPath

Activation = Literal["relu", "tanh", "sigmoid", "gelu"]
Form = Literal["small", "imagenet"]
Share = Annotated[float, Field(ge=0, lt=1)]
Times = Annotated[float, Field(gt=0, le=4)]
Width = Annotated[int, Field(ge=1)]


class LeNet(Config):
    """Caffe's LeNet: convolutions of 20 and 50 maps, a layer of 500; 431,080 parameters at 28 x 28.

    Images below 16 x 16 are surrounded by zeros up to that size.
    """

    kind: Literal["lenet"] = "lenet"


class Mlp(Config):
    """A fully connected net; Oland and Raj use widths 392, 50 and tanh, after the outputs as well."""

    kind: Literal["mlp"] = "mlp"
    widths: list[Width] = Field(default=[392, 50])
    """The hidden layers' widths."""
    activation: Activation = "relu"
    activate_outputs: bool = False
    """Whether the activation is also applied to the last layer, as in Oland and Raj's network; for
    regression."""


class SigmoidStack(Config):
    """Strom's acoustic model: fully connected layers of one width with sigmoids, begun so that they learn."""

    kind: Literal["sigmoid_stack"] = "sigmoid_stack"
    depth: int = Field(default=5, ge=1, le=64)
    """Number of hidden layers; for a residual network the number of all layers, 6n + 2 or 18."""
    width: Width = 1536
    """Width of a hidden layer; for a GPT the width of its embeddings, a multiple of heads."""


class NetworkInNetwork(Config):
    """Network in Network (Lin et al. 2013): the 32 x 32 form, or the ImageNet form that Anoosheh trains."""

    kind: Literal["nin"] = "nin"
    form: Form = "small"
    """small is for images of about 32 x 32; imagenet is the original network, for 224 x 224."""
    dropout: Share = 0.5
    """The share of values that is set to zero in training."""
    bias: bool = True
    """Whether layers have biases. Anoosheh's 7,589,920 gradients are those of the ImageNet form without
    biases."""
    width_multiplier: Times = 1.0
    """Multiplies the number of maps of every hidden layer."""


class AlexNet(Config):
    """AlexNet (Krizhevsky et al. 2012); parameters are named conv.* and fc.*."""

    kind: Literal["alexnet"] = "alexnet"
    form: Form = "small"
    """small is for images of about 32 x 32; imagenet is the original network, for 224 x 224."""
    dropout: Share = 0.5
    grouped: bool = True
    """Whether convolutions 2, 4 and 5 see half of the maps each, as on the original's two GPUs."""
    width_multiplier: Times = 1.0
    """Scales every hidden layer's number of maps or units."""


class ResNet(Config):
    """A residual net for small images (He et al. 2015): the CIFAR nets of 6n + 2 layers, or 18 layers."""

    kind: Literal["resnet"] = "resnet"
    depth: int = Field(default=20, ge=8, le=1202)
    """8, 14, 20, 32, 44, 56, 110, ...: shortcuts have no parameters; 18: the ImageNet net for 32 x 32."""

    @field_validator("depth")
    @classmethod
    def _known(cls, depth: int) -> int:
        if depth != 18 and depth % 6 != 2:
            raise ValueError(f"give 18, or 6n + 2, such as {depth // 6 * 6 + 2}")
        return depth


class Vgg16(Config):
    """VGG16 (Simonyan and Zisserman 2014): for 32 x 32 with batch norm and one last layer, or as it was."""

    kind: Literal["vgg16"] = "vgg16"
    form: Form = "small"
    """small is for images of about 32 x 32; imagenet is the original network, for 224 x 224."""
    dropout: Share = 0.5
    """Dropout of the original's two hidden fully connected layers; the small form has none."""
    width_multiplier: Times = 1.0
    """Scales every hidden layer's number of maps or units."""


class Gpt(Config):
    """A GPT as nanoGPT builds it; the context is the data's number of positions."""

    kind: Literal["gpt"] = "gpt"
    layers: int = Field(default=4, ge=1)
    """Number of blocks of attention and feed-forward network."""
    heads: int = Field(default=4, ge=1)
    width: Width = 128
    """Size of the embeddings; a multiple of heads."""
    dropout: Share = 0.0
    bias: bool = False
    """Whether linear layers and norms have biases, as GPT-2's do."""
    tied: bool = True
    """Whether the last layer shares its weights with the embedding."""

    @model_validator(mode="after")
    def _divides(self) -> "Gpt":
        if self.width % self.heads:
            raise ValueError(f"width = {self.width}: must be a multiple of heads, which is {self.heads}")
        return self


class Timm(Config):
    """Any image network of the timm package, untrained; also written `timm:NAME`."""

    kind: Literal["timm"] = "timm"
    name: str = Field(min_length=1)
    """The network's name in timm, such as resnet10t."""
    arguments: dict[str, str | int | float | bool] = Field(default={})
    """Further keyword arguments for timm.create_model, such as img_size, or for your own function."""


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


def spelled_out(written: Any) -> Any:
    """`timm:NAME` as the fields that it stands for; all else as it is."""
    if isinstance(written, str) and written.startswith("timm:"):
        return {"kind": "timm", "name": written.removeprefix("timm:")}
    return written


ModelConfig = Annotated[
    LeNet | Mlp | SigmoidStack | NetworkInNetwork | AlexNet | ResNet | Vgg16 | Gpt | Timm | CustomModel,
    Field(discriminator="kind"),
    BeforeValidator(spelled_out),
]
