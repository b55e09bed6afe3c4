"""The parts of `qpid-cluster-store`: what it reads, what it changes, and its report, as text and as JSON."""
