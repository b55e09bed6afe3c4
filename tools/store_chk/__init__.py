r"""The implementation of `qpid-store-chk`, a drop-in replacement for Apache's command of that name.

It reads one journal, counts and matches its records, and shows what remains: the messages that were enqueued and not
dequeued, and the transactions that were neither committed nor aborted. The output is the original's, byte for byte. The
journal's bytes come from `store.journal.stream`, and records are validated by `store.journal.ring.version_1`; but the
order of files and records, and where the journal ends, follow the original. `qstore-dump` shows more, including damage;
use it to examine a store after a crash.

    analysis   the info file and the file headers
    walk       one record after the other, to the end of the journal
    maps       enqueued records and open transactions
    text       formatting
    report     the output after the walk
    csv_test   what a test harness expects of the journal
    check      one run of the command

The walk begins in the earliest full file, at its first record offset, and ends silently at the first bytes that are not
a record: unwritten space, bytes of an older lap, or a torn record. A record of another lap than its file ends it with a
warning, shown if all records are (-r). The first record of each file must be where its header says. Transient records
count as any other, and no transaction is looked up in the transaction prepared list.

Where the output differs from the original's, and why:

    - The lines of the info file, and the open transactions, were in a dictionary's arbitrary order. Here the
      former are in the order of the file, the latter in that of their first records.
    - Of the info file only what qpidd writes is shown. The original cannot read a queue's name with & or < or a
      quote, nor print one that is not ASCII; such names are shown unchanged, control characters as `\xNN`.
    - Where the original ends in a traceback or in the raw text of an exception, one line on standard error gives that
      text, or our own, with its place. The exit code is 1, as in the original.
    - A crash while a record was written over two files leaves its beginning in the first. The original takes that for
      an error and reports nothing; here the same line is written, the record is left out, and the report is still
      printed. The exit code is 1, as in the original.
    - The last record may have no more files for its rest: it is of an older lap, overwritten from behind, or torn.
      The original counts it as a record and nothing else, but if it has to show it (-r) it fails, or writes `None`
      for its tail. Here it is counted and never shown.
    - A file header of a big-endian writer, of another version or with a damaged magic is an error, not skipped; a
      forged time is shown, however far away, without an error. The unused word after the nanoseconds is ignored.
    - A test (CSV) that compares transaction ids finds size 0 for a missing one, and no messages in an empty journal:
      there the original failed.
"""
