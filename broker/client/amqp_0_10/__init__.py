"""The client over AMQP 0-10: the machine, sessions, senders and receivers."""
