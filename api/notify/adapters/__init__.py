"""One file per kind of receiver: how a message looks there, its limits, and what success is."""
