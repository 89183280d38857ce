"""The law: which tau (or floor of bits) a run needs, learned from past runs in MLflow.

`past` reads runs and groups them by setting. `best` finds each setting's best value. `fitting` relates it to
the gradients of the first iteration. `command` is `taugrad law`.
"""
