"""The user file.

Modules: `user_file` (names and verifiers), `verifiers` (what is kept of a password), `md5_state` (of CRAM-MD5),
`imports` (users of other brokers' files).
"""
