"""Changes of the topology: exchanges, queues and bindings are created and deleted here."""
