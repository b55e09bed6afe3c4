"""One journal: the reader that walks its records, and recovery, which derives the outstanding messages from them."""
