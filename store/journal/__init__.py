"""One journal: the reader that walks its records, and recovery, which determines what is outstanding after them."""
