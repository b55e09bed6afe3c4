"""Command-line tools, built on `store`, `formats` and the broker's client."""
