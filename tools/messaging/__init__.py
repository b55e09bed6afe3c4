"""What `qpid-send` and `qpid-receive` share."""
