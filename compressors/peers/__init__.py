"""Methods of other projects: the algorithm is theirs, accounting and state are ours."""
