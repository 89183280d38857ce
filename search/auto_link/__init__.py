"""`taugrad auto --link`: the way to train that reaches a target first over a link.

`ways` says how a run could be trained, `prospects` what the plan alone rules out. `courses` trains a little
of the run in each of the other ways, `worth` says what a step was worth, `choice` puts that and seconds
together, and `finding` goes through all that. `wishes`, `words` and `command` are the command line.
"""
