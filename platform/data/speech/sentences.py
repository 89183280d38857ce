"""Sentences to speak, made by a small grammar.

Training, validation and test share the grammar, numbers and small words, and no other word: every fifth noun,
verb, adjective, adverb and name is for validation alone, and every fifth for the test.
"""

from collections.abc import Sequence
from typing import Literal

from numpy.random import Generator

from . import words

PartName = Literal["train", "validation", "test"]

_FIFTHS: dict[PartName, frozenset[int]] = {
    "train": frozenset({0, 1, 2}),
    "validation": frozenset({3}),
    "test": frozenset({4}),
}
_FORMS = (
    "{Noun} {verb} {noun}.",
    "{Noun} {adverb} {verb} {noun} {place} {noun}.",
    "{name} and {name} {verb} {noun}, and {noun} {adverb} {verb} {noun}.",
    "Did you know that {name} {verb} {number} {adjective} things {place} {noun}?",
    "When {noun} {verb} {noun}, {name} was {place} {noun}.",
    "{number} people {adverb} {verb} {noun}; nobody {verb} {noun}.",
    "{Noun} of {name} was {adjective}, {adjective} and {adjective}.",
    "Why would {name} have {verb} {noun}, if {noun} was so {adjective}?",
    "There were {number} of us {place} {noun}, and we {verb} {noun}.",
    "{name} said: {noun} that {verb} {noun} is {adjective}!",
    "On page {number} of the book, {noun} {verb} {name}.",
    "{Noun} cost {number} pounds, which {name} {adverb} {verb}.",
)
_ARTICLES = ("the", "the", "this", "that", "my", "your", "our", "their", "his", "her", "each", "another")
_LARGEST = 10_000
"""Numbers are below it."""


class Sentences:
    """The sentences of one part."""

    def __init__(self, part: PartName) -> None:
        fifths = _FIFTHS[part]
        nouns = _own(words.NOUNS, fifths)
        self._words = {
            "noun": nouns,
            "Noun": nouns,
            "verb": _own(words.VERBS, fifths),
            "adjective": _own(words.ADJECTIVES, fifths),
            "adverb": _own(words.ADVERBS, fifths),
            "name": _own(words.NAMES, fifths),
            "place": words.PLACES.split(),
        }

    def sentence(self, generator: Generator) -> str:
        """The next sentence that chance brings."""
        text = _choice(_FORMS, generator)
        while "{" in text:
            kind = text[text.index("{") + 1 : text.index("}")]
            text = text.replace(f"{{{kind}}}", self._filled(kind, generator), 1)
        return text

    def _filled(self, kind: str, generator: Generator) -> str:
        if kind == "number":
            return str(int(_LARGEST ** generator.random()))
        word = _choice(self._words[kind], generator)
        if kind not in ("noun", "Noun"):
            return word
        if generator.integers(2):
            word = f"{_choice(self._words['adjective'], generator)} {word}"
        article = _choice(_ARTICLES, generator)
        return f"{article.capitalize() if kind == 'Noun' else article} {word}"


def _own(text: str, fifths: frozenset[int]) -> Sequence[str]:
    return [word for number, word in enumerate(text.split()) if number % 5 in fifths]


def _choice(among: Sequence[str], generator: Generator) -> str:
    return among[int(generator.integers(len(among)))]
