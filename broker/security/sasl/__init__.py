"""SASL mechanisms, both ends, sans-I/O.

Modules: `exchange` (their interface), `simple` (of one message), `scram`, `md5` (DIGEST-MD5, CRAM-MD5),
`kerberos` (GSSAPI), and their `table`.
"""
