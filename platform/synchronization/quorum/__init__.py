"""Rounds of local training that close with a quorum: late workers are left out, and catch up later."""
