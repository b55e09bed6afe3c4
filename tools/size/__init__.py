"""The parts of `qstore-size`.

`amounts` parses and formats numbers of bytes; `formula` shows the calculation for a described workload, `queues` for
the queues of a store; `tables` prints both as text.
"""
