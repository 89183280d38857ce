"""A run that follows its link: what was measured, what it says of the link, what is decided by it."""
