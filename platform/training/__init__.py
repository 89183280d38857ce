"""Training: a worker's loop, its records, evaluation and checkpoints."""
