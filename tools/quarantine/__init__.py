"""The parts of `qstore-quarantine`: the quarantine's content, its analysis, and injection of messages into a store."""
