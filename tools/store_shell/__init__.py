"""The shell of `qstore-shell`: the content of a stopped store, or of a running broker, to look at and to change.

place     what a store and a broker have in common: selections, lists, messages, plans of changes
store     a stopped store of any format
broker    a running broker
commands  the commands, and what they print
"""
