"""Which part of a model is data-parallel and which is model-parallel. The names of its children say so.

A model with two parts is a `torch.nn.Sequential` with a child named `flatten`. The children before it are the
convolutional part, those after it the fully connected part.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

FLATTEN = "flatten"
_NAMING = (
    "hybrid needs a torch.nn.Sequential with a child named flatten: convolutions before it, fully connected "
    "layers after it, as in alexnet, vgg16, lenet and resnet"
)
ELEMENTWISE = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Hardtanh,
    nn.Tanh,
    nn.Sigmoid,
    nn.Identity,
)
"""A neuron's output depends on that neuron alone: each worker applies them to its own."""


@dataclass(frozen=True)
class ModelParts:
    """A model's two parts. They share its parameters."""

    convolutional: nn.Sequential
    """Ends with `flatten`. Its parameters have the same names as in the model."""
    fully_connected: tuple[tuple[str, nn.Module], ...]
    """Linear layers, dropouts and element-wise functions in order, each with its name in the model."""


def two_parts(model: nn.Module) -> ModelParts:
    """Cuts a model in two.

    Raises ValueError: it does not name its parts, or the fully connected part has layers whose neurons cannot
    be distributed over workers; the message says which, and why.
    """
    names = [name for name, _ in model.named_children()] if isinstance(model, nn.Sequential) else []
    if FLATTEN not in names:
        raise ValueError(f"the model is a {type(model).__name__} that does not name its two parts; {_NAMING}")
    place = names.index(FLATTEN)
    children = list(model.named_children())
    convolutional = nn.Sequential(OrderedDict(children[: place + 1]))
    fully_connected = tuple(leaf for child in children[place + 1 :] for leaf in _leaves(*child))
    if not any(parameter.requires_grad for parameter in convolutional.parameters()):
        raise ValueError(f"nothing before {FLATTEN} is trained: there is no convolutional part; {_NAMING}")
    if not any(isinstance(layer, nn.Linear) for _, layer in fully_connected):
        raise ValueError(f"no layer after {FLATTEN} is an nn.Linear: nothing can be sharded; {_NAMING}")
    seen = {id(parameter) for parameter in convolutional.parameters()}
    for name, layer in fully_connected:
        _check(name, layer)
        for parameter in layer.parameters():
            if id(parameter) in seen:
                raise ValueError(
                    f"{name} shares a parameter with another layer, which may be on other workers"
                )
            seen.add(id(parameter))
    return ModelParts(convolutional, fully_connected)


def _leaves(name: str, layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(layer, nn.Sequential):
        for inner, module in layer.named_children():
            yield from _leaves(f"{name}.{inner}", module)
    else:
        yield name, layer


def _check(name: str, layer: nn.Module) -> None:
    # Exact types: a subclass may do anything.
    if type(layer) not in (nn.Linear, nn.Dropout, *ELEMENTWISE):
        known = ", ".join(kind.__name__ for kind in (nn.Linear, nn.Dropout, *ELEMENTWISE))
        raise ValueError(
            f"{name} is a {type(layer).__name__}: after {FLATTEN}, each neuron must depend on the "
            f"layer before it only; allowed are {known}"
        )
