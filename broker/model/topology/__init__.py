"""The topology: exchanges, queues and bindings are created, changed and deleted here."""
