"""Who speaks: espeak-ng's English accents, each with the variants of one part."""

from .sentences import PartName

ACCENTS = (
    "en",
    "en-us",
    "en-gb-scotland",
    "en-gb-x-rp",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-029",
    "en-us-nyc",
)

VARIANTS: dict[PartName, tuple[str, ...]] = {
    "train": (
        *("m1", "m3", "m4", "m6", "m7", "f1", "f2", "f4"),
        *(
            "Alex",
            "Andy",
            "Annie",
            "Denis",
            "Gene",
            "Jacky",
            "Lee",
            "Mario",
            "Michael",
            "adam",
            "anika",
            "belinda",
        ),
        *(
            "benjamin",
            "david",
            "ed",
            "edward",
            "grandma",
            "john",
            "linda",
            "max",
            "paul",
            "quincy",
            "rob",
            "steph",
        ),
    ),
    "validation": ("m2", "m8", "f3", "Alicia", "Mike", "caleb", "robert", "steph2"),
    "test": ("m5", "f5", "Andrea", "Gene2", "Hugo", "boris", "travis", "steph3"),
}
"""What makes a voice another person's. Whispering, singing and robots' voices are left out."""


def voices(part: PartName) -> list[str]:
    """The names of a part's voices; no two parts share one."""
    return [f"{accent}+{variant}" for accent in ACCENTS for variant in VARIANTS[part]]
