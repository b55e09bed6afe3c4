"""The AMQP model: messages, exchanges, queues, transactions and settlement, whatever the protocol."""
