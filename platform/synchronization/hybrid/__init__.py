"""Data-parallel convolutions and model-parallel fully connected layers (Krizhevsky 2014, arXiv 1404.5997)."""
