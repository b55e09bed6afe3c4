"""The linearstore journal (QLS) of qpidd: a line of files, each used once, that contain records.

`README.md` in this folder documents every byte, and how qpidd writes and recovers. The modules hold the numbers as
tables, and a test compares the two:

    file_header   the header sector of a file     2.2
    records       headers and tails of records    2.1, 2.3 to 2.6
"""
