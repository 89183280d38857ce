"""Which task to train for."""

from typing import Annotated, Literal

from pydantic import Field

from ..config import Config
from .data import ImportPath


class Classification(Config):
    """One class for each example: cross entropy; the accuracy counts."""

    kind: Literal["classification"] = "classification"


class LanguageModel(Config):
    """The next token at each position: cross entropy in nats, which counts; perplexity, bits per byte."""

    kind: Literal["language_model"] = "language_model"


class Regression(Config):
    """Numbers: squared or absolute error. Classes become one-hot targets, as Oland and Raj train on them."""

    kind: Literal["regression"] = "regression"
    loss: Literal["squared", "absolute"] = "squared"
    """The mean over examples and outputs. If the data has classes, the accuracy counts, otherwise this
    loss."""


class CustomTask(Config):
    """Your own task: a class with the methods of taugrad.platform.tasks.Task."""

    kind: Literal["custom"] = "custom"
    factory: ImportPath
    """package.module:Class"""
    arguments: dict[str, str | int | float | bool] = Field(default={})
    """Keyword arguments for the class."""


TaskConfig = Annotated[Classification | LanguageModel | Regression | CustomTask, Field(discriminator="kind")]
