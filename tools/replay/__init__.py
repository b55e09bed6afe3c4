"""Replay: messages that were delivered before are put on a queue again.

choice    from which message on, and which of those that follow
history   all messages that a journal still has, delivered ones too
sources   what messages come from: a store, an export, a backup
report    what was done, as text and JSON
"""
