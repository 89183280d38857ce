"""Tables for a terminal."""

import io

from rich.console import Console

from taugrad.search.tables import printed


def test_words_of_a_search_stay_whole_in_80_columns():
    headings = (
        "point",
        "accuracy",
        "95% interval",
        "wire MB",
        "times smaller",
        "than 16 bits",
        "trial",
        "at",
    )
    row = (
        "* 1",
        "93.04%",
        "89.92 to 95.24",
        "0.01997",
        "443.2x",
        "221.6x",
        "10",
        "compressor wgt, tau 0.00347",
    )
    out = io.StringIO()
    Console(width=80, file=out).print(printed(headings, [row], text=(7,)))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert set(" ".join(row).split()) <= set(out.getvalue().split())
