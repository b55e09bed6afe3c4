"""TLS, sans-I/O.

Modules: `session` (one connection's encryption, both ends), `contexts` (the broker's certificate, reloaded), `identity`
(the user in a client's certificate), `errors`.
"""
