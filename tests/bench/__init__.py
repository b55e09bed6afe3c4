"""Benchmarks, run by hand and no part of the tests. Each prints its figures beside a reference of the same run."""
