"""`taugrad auto --link`: the way to train that reaches a target first over a link.

`search.ways` lists how a run could be trained, and `prospects` leaves out what the plan alone rules out.
`courses` trains the beginning of the run in the most promising ways, and `worth` computes what a step was
worth. `choice` combines this with the seconds per step, and `finding` runs all of it. `wishes`, `words` and
`command` belong to the command line.
"""
