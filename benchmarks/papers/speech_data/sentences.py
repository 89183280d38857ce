"""Sentences to speak, made by a small grammar.

Training, validation and test share the grammar, numbers and small words, and no other word: every fifth noun,
verb, adjective, adverb and name is for validation alone, and every fifth for the test.
"""

from collections.abc import Sequence

from numpy.random import Generator

PARTS = {"train": {0, 1, 2}, "validation": {3}, "test": {4}}
"""Of each five words, those that a part has."""
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
_LARGEST = 10_000
"""Numbers are below it."""
_ARTICLES = ("the", "the", "this", "that", "my", "your", "our", "their", "his", "her", "each", "another")
_NOUNS = """
anchor apple arrow author autumn baker balcony banjo barrel basket beach beetle bishop blanket blossom
bottle bridge bucket butcher cabin candle canyon captain carpet castle cathedral cellar chair cherry chimney
church circus clock cloud coffee collar comet copper corner cottage cousin cradle curtain daughter desert
diamond doctor dolphin donkey dragon drawer eagle elbow engine envelope evening fabric farmer feather fiddle
finger forest fountain fox furnace garage garden gazelle ginger giraffe glacier glove goose grandfather
guitar hammer harbour harvest hedge helmet hermit horizon horse hospital hotel island ivory jacket jewel
journal journey judge jungle jury kettle king kitchen kite ladder lantern leather lemon leopard letter
library lighthouse lizard lumber machine magnet map market measure meadow merchant mirror monkey morning
mountain mouse museum neighbour nephew newspaper notebook nurse oak ocean office onion orchard ostrich oven
owl oyster package painter palace parrot pasture pebble pencil pepper pheasant pianist picture pigeon pillow
pirate planet pocket poet pony potato prisoner pumpkin puzzle queen rabbit railway rainbow river robin
rocket sailor salad sausage scarf scholar school shadow sheep shepherd shoulder singer sister snow soldier
spider spoon stable station statue stone storm street sugar summer surgeon teacher telescope thief thimble
thunder tiger tower toy train treasure tunnel turtle uncle valley vessel village vineyard violin visitor
voyage wagon walnut watch weather whale wheel widow window winter witch wizard wolf writer yacht yard youth
zebra
"""
_VERBS = """
admired answered avoided borrowed bought brought brushed built buried called carried caught changed chased
chose circled cleaned climbed collected counted covered crossed described destroyed discovered divided drew
dropped enjoyed entered examined explored faced feared fetched finished followed forgot found gathered
grabbed greeted guarded guessed heard held hid ignored imagined invited joined judged kept kicked lifted
liked lost loved made marked measured met mentioned missed moved named needed noticed obeyed observed
offered opened ordered owned painted passed paid photographed picked pleased polished praised prepared
pulled pursued pushed reached recognised remembered repaired rescued rushed saved searched showed sketched
sold sought studied surprised taught thanked threw touched trusted turned understood used visited washed
watched weighed welcomed wished worshipped wrote
"""
_ADJECTIVES = """
able ancient angry awful bitter black blue bold brave bright broad broken brown busy calm careful charming
cheap cheerful clever cold common curious curly dark deaf dear deep dirty distant dry dull dusty eager early
easy empty enormous equal fair famous fearless fierce fine flat foolish foreign fresh friendly funny gentle
glad golden good grand gray green happy harsh heavy high hollow honest huge humble hungry icy jolly joyful
kind large lazy light little lonely long loud lovely lucky mighty mild modern muddy mysterious narrow new
noble noisy odd old orange pale patient perfect plain poor precious proud pure purple quick quiet rare raw
ready red rich rough round royal rusty sad scarlet secret shallow sharp shiny short shy silent silver simple
sleepy slow small smooth soft sour southern splendid square steep strange strong sweet tall tame thick thin
tidy tiny tired ugly unusual useful usual vain vast vivid warm weak wealthy wet white whole wicked wide wild
wise wooden wrong yellow young zealous
"""
_ADVERBS = """
again almost always badly bravely carefully casually cheerfully clearly closely daily eagerly early easily
exactly finally gently gladly happily hardly honestly hurriedly instantly joyfully kindly lately loudly
merrily mostly nearly neatly never nowhere often once openly partly perhaps politely proudly quickly quietly
rarely really safely seldom sharply shortly silently slowly smoothly softly soon suddenly surely swiftly
thoughtfully twice usually vaguely warmly weekly wisely yesterday
"""
_PLACES = """
above across against along among around before behind below beneath beside between beyond by near over past
through toward under
"""
_NAMES = """
Agnes Albert Alice Andrew Arthur Barbara Beatrice Benjamin Bertha Boris Catherine Charles Charlotte Clara
Daniel David Dorothy Edith Edward Eleanor Emily Ethan Eve Felix Florence Frank George Giles Grace Harold
Hazel Helen Henry Hugh Ida Isaac Jack James Jane Joan John Joyce Judith Julia Kate Laura Leo Louise Lucy
Margaret Martha Mary Michael Nora Oliver Oscar Paul Peter Phoebe Rachel Ralph Robert Rose Ruth Samuel Sarah
Simon Sophie Susan Theodore Thomas Ursula Victor Violet Walter William Yvonne Zachary Zoe
"""


class Sentences:
    """The sentences of one part."""

    def __init__(self, part: str) -> None:
        texts = {"noun": _NOUNS, "verb": _VERBS, "adjective": _ADJECTIVES, "adverb": _ADVERBS, "name": _NAMES}
        self._words = {
            kind: [word for number, word in enumerate(text.split()) if number % 5 in PARTS[part]]
            for kind, text in texts.items()
        } | {"place": _PLACES.split()}

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
