"""The commands: each module adds its arguments to the parser, and runs what they ask for.

Only these modules and `taugrad.cli` import all four packages. Imports happen when a command runs, so that
`--help` is fast.
"""
