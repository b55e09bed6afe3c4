"""The broker on the network: listeners, sockets and backpressure."""
