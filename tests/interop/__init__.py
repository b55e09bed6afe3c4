"""Interoperability: every client library at hand sends to every other one, under a coordinator, over all protocols."""
