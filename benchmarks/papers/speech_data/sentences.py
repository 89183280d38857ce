"""Sentences to speak, made by a small grammar.

Training, validation and test share the grammar, numbers and small words, and no other word: every fifth noun,
verb, adjective, adverb and name is for validation alone, and every fifth for the test.
"""

from collections.abc import Sequence
from pathlib import Path

from numpy.random import Generator

PARTS = {"train": {0, 1, 2}, "validation": {3}, "test": {4}}
"""The words of each five that a part has."""
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
_WORDS = Path(__file__).with_name("words.txt")
"""By kind."""
_LARGEST = 10_000
"""Numbers are below it."""
_ARTICLES = ("the", "the", "this", "that", "my", "your", "our", "their", "his", "her", "each", "another")


class Sentences:
    """The sentences of one part."""

    def __init__(self, part: str) -> None:
        chosen = PARTS[part]
        self._words = {
            kind: [word for number, word in enumerate(words) if kind == "place" or number % 5 in chosen]
            for kind, *words in (section.split() for section in _WORDS.read_text("utf-8").split("# ")[1:])
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
        word = _choice(self._words[kind.lower()], generator)
        if kind.lower() != "noun":
            return word
        if generator.integers(2):
            word = f"{_choice(self._words['adjective'], generator)} {word}"
        article = _choice(_ARTICLES, generator)
        return f"{article.capitalize() if kind == 'Noun' else article} {word}"


def _choice(among: Sequence[str], generator: Generator) -> str:
    return among[int(generator.integers(len(among)))]
