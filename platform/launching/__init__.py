"""Launching: from specs to finished runs on a Ray cluster, local or not.

`driver` runs in the command, `worker` in the processes that train; both use what lies beside them.
"""
