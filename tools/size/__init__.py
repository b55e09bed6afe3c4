"""What `qstore-size` is made of.

`amounts` reads and writes numbers of bytes; `formula` shows the calculation for a workload that is told, `queues` that
for the queues of a store; `tables` prints either for people.
"""
