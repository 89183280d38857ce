"""`taugrad plan`: predicts how long a training step takes over a link."""
