"""What hybrid parallelism costs beside data parallelism, by the formulas of docs/synchronization.md.

Legend: K workers, B examples of each, n = K B; P parameters, of convolutions (conv) and of fully connected
layers (fc); F features, H hidden neurons of all layers together, C classes; s bytes of a value on its way.
"""

from dataclasses import dataclass

from torch import nn

from taugrad.platform.synchronization.hybrid.layers import share_of
from taugrad.platform.synchronization.hybrid.parts import two_parts

TARGET_BYTES = NUMBER_BYTES = 8
FLOAT_BYTES = 4
COPIES = 3
"""Weights, gradients, momentum."""


@dataclass(frozen=True)
class Net:
    """What the formulas ask of a model."""

    conv: int
    fc: int
    features: int
    hidden: int
    classes: int
    layers: int
    """Fully connected ones."""

    @classmethod
    def of(cls, model: nn.Module) -> "Net":
        """That of a model that names its two parts."""
        parts = two_parts(model)
        layers = [module for _, module in parts.fully_connected if isinstance(module, nn.Linear)]
        assert len(share_of(parts.fully_connected, 0, 1)) == len(layers)
        return cls(
            conv=sum(parameter.numel() for parameter in parts.convolutional.parameters()),
            fc=sum(parameter.numel() for layer in layers for parameter in layer.parameters()),
            features=layers[0].in_features,
            hidden=sum(layer.out_features for layer in layers[:-1]),
            classes=layers[-1].out_features,
            layers=len(layers),
        )

    def example_bytes(self, value: int) -> int:
        """What an example costs: v = s (2 F + 2 H + C) + 8."""
        return value * (2 * self.features + 2 * self.hidden + self.classes) + TARGET_BYTES


def synchronized(payload: float, workers: int) -> float:
    """Bytes that a worker receives where owners add up their 1/K and send it to all, there and back.

    Args:
        payload: of a message about everything.
        workers: how many there are.
    """
    return 2 * (workers - 1) / workers * payload


def received(net: Net, workers: int, examples: int, value: int, payload: float) -> float:
    """Bytes that a worker receives in a step of hybrid parallelism, mean of the workers, headers left out.

    Args:
        net: the model's sizes.
        workers: K.
        examples: n, of the whole batch.
        value: bytes of one on its way.
        payload: of a message about the convolutions' gradients.
    """
    others = workers - 1
    activations = others / workers * (examples * net.example_bytes(value) + NUMBER_BYTES * workers)
    return activations + synchronized(payload, workers)


def messages(net: Net, workers: int, scheme: str) -> int:
    """Messages of all workers in a step, if every turn has examples of all that it can have."""
    links = workers * (workers - 1)
    turns = 1 if scheme == "a" else workers
    features = workers * links if scheme == "c" else links
    return 2 * links + 2 * features + turns * (2 * net.layers - 1) * links + 2 * links


def kept_bytes(net: Net, workers: int, *, hybrid: bool) -> float:
    """Weights, gradients and momentum of a worker."""
    fc = net.fc / workers if hybrid else net.fc
    return COPIES * FLOAT_BYTES * (net.conv + fc)


def turn_bytes(net: Net, workers: int, examples: int, scheme: str) -> int:
    """Features, in float32, that a worker holds for the turns: all of them, or one's and the next one's."""
    turns = workers if scheme == "a" else min(2, workers)
    return turns * examples * net.features * FLOAT_BYTES


def crossing_ratio(net: Net, workers: int, examples: int, value: int) -> float:
    """How many times data parallelism in 1/K shards must be compressed to receive as little as hybrid.

    Convolutions' gradients are compressed alike on both sides, and so leave no trace:
    2 (K - 1)/K 4 P_fc / r = (K - 1)/K n v.
    """
    return 2 * FLOAT_BYTES * net.fc / (examples * net.example_bytes(value))


def crossing_ratio_to_all(net: Net, workers: int, examples: int, value: int) -> float:
    """The same where data parallelism sends each message to all: (K - 1) 4 P / r on its side.

    With r the ratio of both sides' gradients, (K - 1) 4 P / r = (K - 1)/K (n v + 8 P_conv / r).
    """
    whole = FLOAT_BYTES * (workers * (net.conv + net.fc) - 2 * net.conv)
    return whole / (examples * net.example_bytes(value))
