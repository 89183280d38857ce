"""Faults at seeded moments of runs, and whether a run ends as one that nothing happened to.

`platform/soak.py` is the program. A **scenario** (`scenarios.py`) is what is run; a **fault** (`kinds.py`)
strikes it; a **case** (`cases.py`) is one of both with a number, from which its moment follows. What runs
leave is compared in `comparing.py`.
"""
