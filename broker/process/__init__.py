"""The broker's process: command line, options, daemon, signals, startup and shutdown."""
