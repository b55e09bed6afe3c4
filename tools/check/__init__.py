"""`qstore-check`: its report, for people and for programs."""
