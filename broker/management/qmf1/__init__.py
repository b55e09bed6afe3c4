"""QMF version 1: requests, schemas, objects and events in binary form, and agents that others attach."""
