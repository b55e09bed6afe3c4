"""The files of a ring (rhm, versions 1 and 2): their identity, their order, and their records."""
