"""QMF, the Qpid Management Framework: the content of its messages, without their transport."""
