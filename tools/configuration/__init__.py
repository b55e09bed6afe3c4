"""The work of `qpid-config`.

options     the options of queues, exchanges and bindings, as one table of arguments
show        summary, queues and exchanges with their attributes and bindings, and objects of any class
change      creating, deleting, binding, and the broker itself
"""
