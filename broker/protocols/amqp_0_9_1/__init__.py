"""AMQP 0-9-1: the broker's end of connections, channels and their messages. See README.md."""
