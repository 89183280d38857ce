"""The mode `async`: asynchronous updates, in which no worker waits for the others (Strom, 2.3 to 2.6)."""
