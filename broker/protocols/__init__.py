"""The protocols that the broker speaks: each a sans-I/O machine, over one model."""
