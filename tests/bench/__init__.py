"""Benchmarks: run by hand, no part of the tests. Each prints its figures beside those of a reference in the same run."""
