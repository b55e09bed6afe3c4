"""Authentication: SASL mechanisms for both ends of a connection, and the user file.

Modules: `mechanisms` (the SASL mechanisms), `authentication` (which of them a broker offers to which clients), `users`
(the user file).
"""
