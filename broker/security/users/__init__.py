"""The user file.

Modules: `user_file` (names and verifiers), `verifiers` (stored in place of a password), `imports` (of other files).
"""
