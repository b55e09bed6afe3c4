"""The network and the AMQP model: connections, sessions, exchanges, queues, security, management."""
