"""SASL mechanisms, both ends, sans-I/O.

Modules: `exchange` (their interface), `simple` (of one message), `scram`, `digest_md5`, `cram_md5`, `kerberos`
(GSSAPI), and their `table`.
"""
