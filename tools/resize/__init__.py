"""The parts of `qstore-resize` and of `qpid-store-resize`."""
