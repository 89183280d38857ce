"""taugrad: find out how little a data-parallel training job has to say, then run it that way.

The rooms: `taugrad.compressors` (what to send and how to write it down; usable alone),
`taugrad.platform` (an experiment, from spec to tracked run), `taugrad.search` and
`taugrad.dashboards`.
"""

__version__ = "0.1.0"
