"""The broker's log: categories and levels, where lines go, and the lines about events."""
