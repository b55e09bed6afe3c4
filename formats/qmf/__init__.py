"""QMF, the Qpid Management Framework: what its messages contain, without the messages' transport."""
