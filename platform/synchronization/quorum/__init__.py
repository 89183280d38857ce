"""Rounds of local training that close with a quorum: whoever is late is left out, and catches up."""
