"""The report of `qstore-recover`, as text and as JSON."""
