"""Berkeley DB (libdb 5.3) as qpidd leaves it beside its journals: btree files and the log; read, and made anew.

`README.md` in this folder says every byte that is read and written. The modules hold the numbers as tables, and a test
holds the two together:

    pages    metadata, page headers, items           2 to 4
    btree    keys and values, in a cursor's order
    log      records, and whether files lack some    5
    writer   whole files from keys and values        6

Sources of page types, flags, record types and their arguments: libdb 5.3, held against the output of its db5.3_dump and
db5.3_printlog; of the counts: files that its db5.3_load makes.
"""

from formats.bdb.btree import Btree, salvage
from formats.bdb.log import Contradiction, LogSummary, analyse_log, contradictions, why_recovery
from formats.bdb.pages import BdbError, Lsn, Metadata, UnsupportedDatabaseError
from formats.bdb.writer import encode_btree, encode_empty_log

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
