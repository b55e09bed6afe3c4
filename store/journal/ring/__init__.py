"""The files of a ring (rhm, versions 1 and 2): their order, whose they are, and their records."""
