"""Modes of synchronization; `config` and `validation` are light, everything else needs torch."""
