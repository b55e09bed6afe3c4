"""AMQP 1.0: connections, sessions and links, on top of the common engine."""
