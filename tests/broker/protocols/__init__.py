"""Tests of the protocol machines, without sockets."""
