"""`taugrad auto --link`: the candidate that reaches a target first over a link.

`plan.candidates` lists how a run could be trained, and `shortlist` leaves out what the plan alone rules out.
`probe_runs` trains the beginning of the run by the most promising candidates, and `step_value` computes what
a step was worth. `choice` combines this with the seconds per step, and `finding` runs all of it. `request`,
`words` and `command` belong to the command line.
"""
