"""In the command's process: checks, starts Ray, launches runs, and says how they end."""
