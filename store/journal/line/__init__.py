"""A linearstore journal (qls): its directory of links, its files, and their records."""
