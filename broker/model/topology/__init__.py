"""Topology changes: creates and deletes exchanges, queues and bindings."""
