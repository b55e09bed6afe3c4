"""Benchmarks, run by hand and no part of the tests. Each prints its metrics beside a reference of the same run."""
