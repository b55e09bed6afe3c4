"""The shell of `qstore-shell`: the content of a stopped store, or of a running broker, to look at and to change.

words       a line as commands and words; which messages are selected
place       what a store and a broker have in common: lists, messages, plans of changes
store       a stopped store of any format
broker      a running broker
commands    the commands
show        objects and the content of messages as text
paging      long output on a terminal
"""
