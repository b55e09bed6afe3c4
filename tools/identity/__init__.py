"""`qpid-cluster-store`: what it looks at, what it changes, and its report, for people and for programs."""
