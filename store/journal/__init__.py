"""One journal: the reader that walks its records, and the recovery that says what they leave behind."""
