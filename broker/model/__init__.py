"""The AMQP model, independent of the protocol: messages, exchanges, queues, transactions and settlement."""
