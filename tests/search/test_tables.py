"""Tables for a terminal."""

import io

from rich.console import Console

from taugrad.search.tables import printed


def test_words_of_a_search_stay_whole_in_80_columns():
    row = {
        **{"point": "* 1", "accuracy": "93.04%", "95% interval": "89.92 to 95.24", "wire MB": "0.01997"},
        **{"times smaller": "443.2x", "than 16 bits": "221.6x", "trial": "10"},
        "at": "compressor wgt, tau 0.00347",
    }
    out = io.StringIO()
    Console(width=80, file=out).print(printed(list(row), [tuple(row.values())], text=(7,)))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert set(" ".join(row.values()).split()) <= set(out.getvalue().split())
