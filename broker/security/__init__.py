"""Who is there: SASL mechanisms for both ends of a connection, and the file of users.

Modules: `mechanisms` (the table of mechanisms, and what each says), `authentication` (which of them a broker offers to
whom), `users` (names and passwords).
"""
