"""`taugrad auto --link`: the candidate that reaches a target first over a link.

`plan.candidates` lists how a run could be trained. `finding` leaves out what the plan alone rules out, and
runs the rest: `probe_runs` trains the beginning of the run by the most promising candidates, `step_value`
computes what a step was worth, and `choice` combines this with the seconds per step. `request`, `words` and
`run_auto_link` belong to the command line.
"""
