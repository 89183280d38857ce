"""In the processes that train: the process group, a run's training, its checkpoints."""
