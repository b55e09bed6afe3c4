"""Generates large fleets of stores with known content: the implementation of `qstore-generate`."""
