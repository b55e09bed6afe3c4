"""The report of `qstore-check`, as text and as JSON."""
