"""QMF version 2: requests, schemas, objects and events as maps."""
