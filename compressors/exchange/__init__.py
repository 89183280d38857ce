"""How messages get from worker to worker: one carrier for the hook and for all modes.

`patterns/` says who sends what to whom, `exchange` runs a pattern over a `carrier` (`mesh` between
processes), and `averaging` one exchange after the other. `local_rounds` are local steps, `members/` those
whose workers come and go.
"""
