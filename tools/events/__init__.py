"""The work of `qpid-printevents`.

lines     events and heartbeats as lines, and as JSON
watching  several brokers at the same time, connected again when a connection is lost
"""
