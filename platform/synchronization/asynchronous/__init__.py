"""Asynchronous updates (Strom, 2.3 to 2.6). So far only how replicas add up; no `sync.mode` offers it yet."""
