"""The client over AMQP 1.0: the machine, sessions, senders and receivers, the encoding of messages."""
