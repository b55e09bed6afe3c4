"""The protocols that the broker speaks: sans-I/O state machines on top of the model, on one engine."""
