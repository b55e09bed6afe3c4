"""The user file.

Modules: `user_file` (names and verifiers), `verifiers` (what is kept of a password), `imports` (users of other files).
"""
