"""Methods of others, adopted: the algorithm is theirs, accounting and state are ours."""
