r"""The implementation of `qpid-qls-analyze`, a drop-in replacement for Apache's command of that name.

It reads the journals of a linearstore and shows what remains: the messages that were enqueued and not dequeued, the
transactions that were neither committed nor aborted, and what qpidd's recovery would do about these. The output is the
original's, byte for byte. The journals' bytes come from `store.journal.stream`, and records are validated by
`store.journal.line.records`; but a journal ends, as in the original and in qpidd itself, at the first record that is
torn or belongs to another life of the file. `qstore-dump` and `qstore-check` report more, and read on after damage; use
them to examine a store after a crash.

    files           the files of a journal, found by name, in the order of their numbers
    walk            one record after the other, to the end of the journal
    maps            enqueued records, open transactions, record counts
    text            formatting
    journal         one journal: the walk, and the report
    reconciliation  the open transactions compared with the prepared list
    pools           the empty file pools
    problems        what could not be read
    show            the options
    analysis        one run of the command

Where the output differs from the original's, and why:

    - A record whose tail, or whose rest, is in the next files is completed. The original never completes a tail that is
      split over two files, and skips every file that a record fills from beginning to end; there it assumes the end of
      the journal, or continues with one file too few.
    - A file whose time happens to have 0 nanoseconds is a file like any other.
    - Where the original prints a Python object, the record's header is printed; where it prints 'None', because
      --txtest found no text, what is printed without that option. A text without a terminating NUL extends to the end
      of the data; control characters are written `\xx`, in names `\xNN`.
    - External records are shown, without their data, which is elsewhere. `*EXTERNAL]` is as in the original.
    - A queue whose name has slashes has a directory of directories. The original shows the first of these as an
      empty journal; here the queue is shown. Files among the queues' directories, on which it fails, are skipped.
    - The links of a journal's directory may be broken: the files are found by their names among the store's own, even
      if the links lead to others.
    - Open transactions, in the original in a dictionary's arbitrary order, and pools, in a directory's, are sorted by
      their first records and by size.
    - A record is locked while an open transaction dequeues it. The original may leave one locked forever that two
      transactions dequeued, or one before the commit of its enqueue, or may fail.
    - If two dequeues of one transaction are in the prepared list, one with an abort decides; the original fails.
    - A file header among the records ends the journal; the original takes it for a filler. A first record offset that
      is not at a block is reported, and not followed.
    - A transaction id of more than 1024 bytes, which no client can create, is cut in the middle; a record with one of
      more than 1 MiB is invalid.
    - A partition is read whatever its permissions: the original refuses one that its group may not read, and reports a
      missing permission to write, which is not needed. One without pools is empty, not an error. Of a pool's files in
      use and returned only those named like a journal file count; a waiting file counts whatever first record offset
      its former use left in the header, as in qpidd.

Where the original ends in a traceback, or ignores a file that it cannot use, there is one line on standard error,
everything else is still printed, and the exit code is 1. A torn record, or one with another serial, is not such a case:
that is how a journal ends after a crash. A first record that is not where its file's header says is reported as by the
original, and leaves the exit code 0 as there. A directory that is not a linearstore is a usage error; the original
shows an empty report. The version is printed on standard output.
"""
