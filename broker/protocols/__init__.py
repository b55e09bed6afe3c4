"""The protocols that the broker speaks: each a sans-I/O state machine on top of the model."""
