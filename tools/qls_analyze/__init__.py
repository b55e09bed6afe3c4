r"""What `qpid-qls-analyze` does: a drop-in for the command of that name that came with qpidd.

The journals of a linearstore are read, and what remains is shown: the messages that were enqueued and not dequeued, the
transactions that were neither committed nor aborted, and what qpidd's recovery would do about these. What is printed is
the original's, to the byte. The journals' bytes come from `store.journal.stream`, and what is a good record
`store.journal.line.records` says; but a journal ends, as for the original and for qpidd itself, at the first record
that is torn or not its own. `qstore-dump` and `qstore-check` tell more, and read on behind damage; who needs the truth
about a store after a crash should ask them.

    files           the files of a journal, found by name, in the order of their numbers
    walk            one record after the other, to the end of the journal
    maps            what is enqueued, which transactions are open, how many records there were
    text            how everything is written
    journal         one journal: the walk, and the report
    reconciliation  the open transactions against the prepared list
    pools           the empty file pools
    problems        what could not be read
    show            the options
    analysis        all of these together

Where the output is another than the original's, and why:

    - A record whose tail, or whose rest, is in the next files is completed. The original never completes a tail that is
      split over two files, and passes over every file that a record fills from beginning to end; there it takes the
      journal to end, or goes on with a file too few.
    - A file whose time happens to have 0 nanoseconds is a file as any other.
    - Where the original prints a Python object, the record's header stands; where it prints 'None', because --txtest
      found no text, what is shown without that option. A text that no NUL ends goes up to the end of the data;
      control characters are written `\xx`, in names `\xNN`.
    - External records are shown, without their data, which is elsewhere. `*EXTERNAL]` is as the original has it.
    - A queue whose name has slashes has a directory of directories. The original shows the first of these as an
      empty journal, here the queue is shown. Files among the queues' directories, where it fails, are passed over.
    - The links of a journal's directory need not lead anywhere: the files are found by their names among the store's
      own, even if there are others where the links lead.
    - Open transactions, in the arbitrary order of a dictionary, and pools, in that of a directory, come in the order of
      their first records and of their sizes.
    - A record is locked as long as an open transaction dequeues it. The original may leave one locked for ever that two
      transactions dequeued, or one before the commit of its enqueue, or may fail.
    - Where two dequeues of one transaction are in the prepared list, one that says abort decides; the original fails.
    - A file header among the records ends the journal; the original takes it for a filler. A first record offset that
      lies on no block is told, and not followed.
    - A transaction id of more than 1024 bytes, which no client can make, is cut in the middle; a record with one of
      more than 1 MiB is no good record.
    - A partition is read whoever may read it: the original refuses one that its group may not read, and calls that a
      missing permission to write, which nobody needs here. One without pools is empty, not an error. Of a pool's
      files in use and returned only those of a journal file's name count; a waiting file counts whatever first record
      offset its former use left in the header, as for qpidd.

Where the original ends in a traceback, and where it says nothing of a file that it cannot use, there is one line on
standard error, all else is printed all the same, and the exit code is 1. A torn record, or one with another serial, is
no such case: that is how a journal ends after a crash. A first record that is not where its file's header says is told
as by the original, and leaves the exit code 0 as there. A directory that is no linearstore is a usage error; the
original shows an empty report. The version goes to standard output.
"""
