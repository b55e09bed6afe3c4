"""Queues: messages in order, and the consumers that take or browse them."""
