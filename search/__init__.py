"""Searches over thresholds and bit floors. Nothing is here yet; CHANGELOG.md says what there is."""
