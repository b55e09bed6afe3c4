"""Berkeley DB (libdb 5.3) files that qpidd leaves next to its journals: btree files and the log; read, and created.

`README.md` in this folder documents every byte that is read and written. The modules hold the numbers as tables, and a
test compares the two:

    pages    metadata, page headers, items           2 to 4
    btree    keys and values, in a cursor's order
    log      records, and whether files lack some    5
    writer   whole files from keys and values        6

Sources of page types, flags, record types and their arguments: libdb 5.3, compared with the output of its db5.3_dump
and db5.3_printlog; of the counts: files that its db5.3_load creates.
"""

from qstore.formats.bdb.btree import Btree, salvage
from qstore.formats.bdb.log import Contradiction, LogSummary, analyse_log, contradictions, why_recovery
from qstore.formats.bdb.pages import BdbError, Lsn, Metadata, UnsupportedDatabaseError
from qstore.formats.bdb.writer import encode_btree, encode_empty_log

__all__ = [
    "BdbError",
    "Btree",
    "Contradiction",
    "LogSummary",
    "Lsn",
    "Metadata",
    "UnsupportedDatabaseError",
    "analyse_log",
    "contradictions",
    "encode_btree",
    "encode_empty_log",
    "salvage",
    "why_recovery",
]
