"""The ring journal on disk: version 1, qpidd's legacystore, and version 2, qstore's own.

`README.md` in this folder documents every byte of both, and the rules that readers rely on. The modules hold the
numbers as tables, and a test compares the two; the sections:

    geometry      sizes of blocks, sectors, pages, files                1
    records       headers and tails of records, decoded and encoded     2.4 to 2.7, 8.3
    headers       the same for loops that read or write many            2.4, 2.5, 8.3
    file_header   the header sector of a file                           2.3, 8.1, 8.2
    jinf          the info file                                         4
    store_file    the file STORE next to the journals                   1.4
    close_record  the file CLOSED next to it                            1.4
    index         the files in the directory index next to it           1.4
"""
