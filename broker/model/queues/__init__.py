"""Queues: messages in their order, those who take them, and those who look on."""
