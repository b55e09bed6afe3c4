"""`qstore-quarantine`: what a quarantine holds, what can be told of it, and how its messages come into a store."""
