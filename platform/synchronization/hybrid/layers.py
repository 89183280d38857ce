"""The two parts of a model, and a worker's share of the fully connected one: some neurons of each layer.

A model with two parts is a `torch.nn.Sequential` with a child named `flatten`. The children before it are the
convolutional part, those after it the fully connected part.

Whether a neuron is dropped must not depend on how neurons and examples are distributed over the workers. So a
mask is a function of seed, iteration, layer, example and neuron, not the next number of a generator: that of
SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"), whose state is a
counter.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_BITS = 53
"""The number of bits of a random number that are compared with p."""


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    word &= 2**64 - 1
    return word - 2**64 if word >> 63 else word


def _shifted(words: Tensor, by: int) -> Tensor:
    """A logical shift to the right; torch's is arithmetic."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _mixed(words: Tensor) -> Tensor:
    """SplitMix64's output function, of int64 read as 64-bit words; products wrap."""
    words = (words ^ _shifted(words, 30)) * _signed(_FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(_SECOND)
    return words ^ _shifted(words, 31)


def _drawn(key: Tensor, numbers: Tensor) -> Tensor:
    """The streams' outputs at some places, counted from 0."""
    return _mixed(key + (numbers + 1) * _signed(_GOLDEN))


@dataclass(frozen=True)
class ExampleRows:
    """Which examples are computed, for masks."""

    seed: int
    """The run's."""
    iteration: int
    """Counted from 0 over the run."""
    rows: Tensor
    """int64 [m], places in the whole batch."""

    def kept(self, layer: int, p: float, start: int, stop: int) -> Tensor:
        """Which neurons from `start` to `stop` stay, each dropped with probability p: bool [m, stop - start].

        `layer` is the dropout's number among the model's. The result is on the rows' device.
        """
        device = self.rows.device
        key = torch.zeros((), dtype=torch.int64, device=device)
        for number in (self.seed, self.iteration, layer):
            key = _drawn(key, torch.tensor(number, device=device))
        of_rows = _drawn(key, self.rows)[:, None]
        words = _drawn(of_rows, torch.arange(start, stop, device=device)[None, :])
        return _shifted(words, 64 - _BITS) >= int(p * 2**_BITS)


def dropped(inputs: Tensor, kept: Tensor, p: float) -> Tensor:
    """Inputs [m, n] without what is not kept, the others divided by 1 - p as `nn.Dropout` does."""
    return inputs * kept.to(inputs.dtype) * (1 / (1 - p) if p < 1 else 0.0)


@dataclass(frozen=True)
class _Dropout:
    number: int
    """Among the model's."""
    p: float


Function = nn.Module | _Dropout


class Layer(nn.Module):
    """A worker's neurons of one linear layer, with the functions around it.

    Attributes:
        name: the layer's, in the model.
        dealt: the neurons of every worker, by rank.
        inputs: features of an example.
        weight: float [own neurons, inputs].
        bias: float [own neurons], or None.
    """

    def __init__(
        self,
        name: str,
        whole: nn.Linear,
        before: Sequence[Function],
        after: Sequence[Function],
        rank: int,
        workers: int,
    ) -> None:
        super().__init__()
        self.name, self.inputs, self.neurons = name, whole.in_features, whole.out_features
        ends = [self.neurons * end // workers for end in range(workers + 1)]
        self.dealt = [range(*neurons) for neurons in pairwise(ends)]  # some may be empty
        self.held = self.dealt[rank]
        self._before, self._after = tuple(before), tuple(after)
        self.weight = self._share(whole.weight)
        self.bias = None if whole.bias is None else self._share(whole.bias)

    def _share(self, whole: Tensor) -> nn.Parameter:
        weight = whole.detach()[self.held.start : self.held.stop].clone()
        return nn.Parameter(weight, requires_grad=whole.requires_grad)

    def forward(self, inputs: Tensor, examples: ExampleRows) -> Tensor:
        """The outputs of this worker's neurons, [m, own neurons].

        `inputs`, [m, inputs], are the outputs of all neurons of the layer before for these examples.
        """
        width = range(self.inputs)
        for function in self._before:
            inputs = _applied(function, inputs, examples, width, training=self.training)
        outputs = nn.functional.linear(inputs, self.weight, self.bias)
        for function in self._after:
            outputs = _applied(function, outputs, examples, self.held, training=self.training)
        return outputs

    @torch.no_grad()
    def take_from(self, whole: nn.Linear) -> None:
        """Copies this worker's neurons from the whole layer."""
        self.weight.copy_(whole.weight[self.held.start : self.held.stop])
        if self.bias is not None:
            self.bias.copy_(whole.bias[self.held.start : self.held.stop])


def _applied(
    function: Function, values: Tensor, examples: ExampleRows, neurons: range, *, training: bool
) -> Tensor:
    if not isinstance(function, _Dropout):
        result: Tensor = function(values)
        return result
    if not training or not function.p:
        return values
    return dropped(
        values, examples.kept(function.number, function.p, neurons.start, neurons.stop), function.p
    )


def share_of(fully_connected: Sequence[tuple[str, nn.Module]], rank: int, workers: int) -> list[Layer]:
    """A worker's layers: a `Layer` for each linear layer of what `two_parts` found, in order.

    Functions belong to the linear layer before them, or to the first one if there is none before them.
    """
    linear = [place for place, (_, module) in enumerate(fully_connected) if isinstance(module, nn.Linear)]
    functions: dict[int, Function] = {}
    for place, (_, module) in enumerate(fully_connected):
        if isinstance(module, nn.Dropout):
            functions[place] = _Dropout(sum(isinstance(f, _Dropout) for f in functions.values()), module.p)
        elif not isinstance(module, nn.Linear):
            functions[place] = deepcopy(module)
            if hasattr(module, "inplace"):
                functions[place].inplace = False  # type: ignore[union-attr]
    layers = []
    for place, end in pairwise([*linear, len(fully_connected)]):
        name, whole = fully_connected[place]
        assert isinstance(whole, nn.Linear)
        before = [functions[i] for i in range(place)] if place == linear[0] else []
        after = [functions[i] for i in range(place + 1, end)]
        layers.append(Layer(name, whole, before, after, rank, workers))
    return layers


def cut_optimizer(
    former: Sequence[Mapping[str, Any]], layers: Sequence[Layer], fresh: Mapping[str, Any]
) -> dict[str, Any]:
    """An optimizer's state for another number of workers: it moves with the neurons.

    `former` are the states that there were, by worker; `layers` those of a worker that there is now, and
    `fresh` the state of its optimizer, of which the settings are taken.
    """
    state: dict[int, Any] = {}
    for number, neurons in enumerate(layer.held for layer in layers for _ in layer.parameters()):
        kept = [state["state"].get(number, {}) for state in former]
        cut = {key: _rows([state[key] for state in kept], neurons) for key in kept[0]}
        if cut:
            state[number] = cut
    return {**fresh, "state": state}


def _rows(values: Sequence[Any], neurons: range) -> Any:
    """Rows of the workers' tensors one after the other; what has no rows is the same on all workers.

    Each gets its own: an optimizer counts its steps in place, in the tensor that it is given.
    """
    first = values[0]
    if not isinstance(first, Tensor) or not first.dim():
        return deepcopy(first)
    return torch.cat(list(values))[neurons.start : neurons.stop].clone()


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
