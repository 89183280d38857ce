"""How messages get from worker to worker: one carrier for the hook and for all modes."""
