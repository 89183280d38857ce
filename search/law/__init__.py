"""The law: which tau (or floor of bits) a run needs, learned from past runs in MLflow.

`past` reads runs and the settings that they were made in, `best` finds each setting's best value, `fitting`
relates it to what gradients look like in the first iteration, `command` is `taugrad law`.
"""
