"""`sync.adapt`: a run measures its link, estimates its rate and delay, and decides how much to send."""
