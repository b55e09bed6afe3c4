"""The broker's process: command line, options, daemon, signals, start and end."""
