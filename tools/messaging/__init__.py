"""Shared parts of `qpid-send` and `qpid-receive`."""
