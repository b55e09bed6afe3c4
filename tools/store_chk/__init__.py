r"""What `qpid-store-chk` does: a drop-in for the command of that name that came with qpidd.

One journal is read, its records counted and matched, and what remains is shown: the messages that were enqueued and not
dequeued, and the transactions that were neither committed nor aborted. What is printed is the original's, to the byte.
The journal's bytes come from `store.journal.stream`, and what is a good record `store.journal.ring.version_1` says; but
in which order files and records are met, and where the journal ends, follows the original. `qstore-dump` tells more,
and tells damage; who needs the truth about a store after a crash should ask that one.

    analysis   the info file and the file headers
    walk       one record after the other, to the end of the journal
    maps       what is enqueued, and which transactions are open
    text       how everything is written
    report     what is printed after the walk
    csv_test   what a test harness expects of the journal
    check      all of these together

The walk begins in the earliest full file, at its first record offset, and ends without a word at the first thing
that is no record: unwritten space, bytes of an older lap, or a record that was torn. A record of another lap than its
file ends it with a warning, shown where all records are (-r). The first record of each file must be where its header
says. Transient records count as any other, and no transaction is looked up in the transaction prepared list.

Where the output is another than the original's, and why:

    - The lines of the info file, and the open transactions, came in the arbitrary order of a dictionary. Here the
      former come in the order of the file, the latter in that of their first records.
    - Of the info file only what qpidd writes is shown. The original cannot read a queue's name that holds & or < or a
      quote, nor print one that is not ASCII; such names are shown as they are, control characters as `\xNN`.
    - Where the original ends in a traceback or in the raw text of an exception, the text is told with its place, or in
      words of our own, on one line of standard error. The exit code is 1, as it was.
    - A crash while a record was written over two files leaves its beginning in the first. The original takes that for
      an error and reports nothing; here the one line is written, the record is left out, and the report is printed
      all the same. The exit code is 1, as it was.
    - The last record may have no more files for its rest: it is of an older lap, overwritten from behind, or torn.
      The original counts it as a record and nothing else, but where it has to show it (-r) it fails, or writes `None`
      for its tail. Here it is counted and never shown.
    - A file header of a big-endian writer, of another version or with a damaged magic is an error, not passed over; a
      forged time is shown, however far away, and no error. The unused word behind the nanoseconds is no part of them.
    - A test (CSV) that compares transaction ids finds one of size 0 where there is none, and none of the messages that
      it expects in an empty journal: where the original failed.
"""
