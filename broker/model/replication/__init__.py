"""Replication of queues to another broker: events of their messages, and the exchange that applies them there."""
