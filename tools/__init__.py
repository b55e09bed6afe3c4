"""Commands for people, on top of `store` and `formats`."""
