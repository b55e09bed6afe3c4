"""The views of `qpid-stat`, and the rates of `qpid-queue-stats`.

views     lists: connections, exchanges, queues, subscriptions
details   the broker, one queue, memory, access control
rates     what queues did between two samples
"""
