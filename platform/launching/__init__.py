"""Launching: from specs to finished runs on a Ray cluster, local or not."""
