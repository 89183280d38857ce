"""What a model and a task need to know about the data."""

from dataclasses import dataclass
from typing import Literal

Targets = Literal["classes", "tokens", "numbers"]


@dataclass(frozen=True)
class Shape:
    """The shape of one example.

    Attributes:
        inputs: dimensions of its input: (channels, height, width) of an image, (positions,) of tokens.
        outputs: how many numbers a model returns for it, or at each position: classes, the vocabulary.
        targets: what they are compared with: a class, a token at each position, or numbers.
        token_inputs: whether inputs are int64 tokens, below `outputs`; else they are float32.
        bytes_per_token: of the test text; None where that is not known or there is none.
    """

    inputs: tuple[int, ...]
    outputs: int
    targets: Targets = "classes"
    token_inputs: bool = False
    bytes_per_token: float | None = None

    @classmethod
    def image(cls, channels: int, height: int, width: int, classes: int) -> "Shape":
        """The shape of an image to classify."""
        return cls((channels, height, width), classes)

    @classmethod
    def text(cls, positions: int, vocabulary: int, bytes_per_token: float | None = None) -> "Shape":
        """The shape of a stretch of text whose next tokens are predicted."""
        return cls((positions,), vocabulary, "tokens", token_inputs=True, bytes_per_token=bytes_per_token)

    @property
    def is_image(self) -> bool:
        """Whether inputs have channels, height and width."""
        return len(self.inputs) == 3 and not self.token_inputs

    def keywords(self) -> dict[str, int | tuple[int, ...]]:
        """As a user's own model is told it."""
        if self.token_inputs:
            return {"positions": self.inputs[0], "vocabulary": self.outputs}
        if self.is_image:
            channels, height, width = self.inputs
            size: dict[str, int | tuple[int, ...]] = {"channels": channels, "height": height, "width": width}
        else:
            size = {"inputs": self.inputs}
        return {**size, ("classes" if self.targets == "classes" else "outputs"): self.outputs}

    def __str__(self) -> str:
        kind = "tokens" if self.token_inputs else "images" if self.is_image else "inputs"
        return f"{kind} of {' x '.join(map(str, self.inputs))}"
