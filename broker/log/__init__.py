"""The broker's log: categories, levels, rules, outputs, and the lines about events."""
