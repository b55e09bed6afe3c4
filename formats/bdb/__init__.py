"""Berkeley DB (libdb 5.3) as qpidd leaves it beside its journals: btree files and the log; read, and made anew.

A database file is an array of pages of one size (512 bytes to 64 KiB; qpidd: 4096). Numbers are in the byte
order of the machine that made the file: the magic number tells. Page 0 is the metadata:

====== ======== =============================================================================================
offset type     metadata page
====== ======== =============================================================================================
0      u32 x 2  log sequence number (LSN): log file, offset in it
8      u32      page number, 0
12     u32      magic, 0x00053162 for btree and recno
16     u32      version, 9
20     u32      page size
24     u8       encryption, 0 for none
25     u8       page type, 9
26     u8       bit 0: pages are checksummed
28     u32      head of the list of free pages
32     u32      last page
36     u32      number of partitions, 0 for none
40     u32 x 2  keys, records (hints)
48     u32      flags: `MetadataFlag`
52     u8 x 20  file id
76     u32 x 3  fewest keys on a page, record length and record padding (recno)
88     u32      root page
492    u32      checksum of the first 512 bytes, taken with these 4 as zeros
====== ======== =============================================================================================

Every other page:

====== ======== =============================================================================================
offset type     page
====== ======== =============================================================================================
0      u32 x 2  LSN of the last change
8      u32      page number
12     u32 x 2  previous and next page of a chain of leaves or overflow pages, 0 for none; the first of an internal
                root of duplicates: how many there are
20     u16      entries; on an overflow page: how often its chain is referred to
22     u16      lowest used offset; on an overflow page: length of its data
24     u8       level: leaf 1
25     u8       `PageType`
(28)   u32      checksum of the page, taken with these 4 as zeros, where the metadata says so
26     u16 x n  offsets of the entries (from 32 in a checksummed page); the items lie at the page's end
====== ======== =============================================================================================

Items, each aligned to 4 bytes. Bit 0x80 of a type: deleted.

================ ==========================================================================================
on page          item
================ ==========================================================================================
5, 6, 12: leaves u16 length, u8 type 1, data; or a reference: u16 -, u8 type, u8 -, u32 page, u32 length;
                 type 3: the data is in a chain of overflow pages; type 2: the page is the root of a tree that
                 holds the key's duplicates. Page type 5 alternates key and data (duplicates on the page repeat
                 the key's offset); 6 (unsorted) and 12 (sorted) hold duplicates only
3: internal      u16 length, u8 type, u8 -, u32 child, u32 records, separator
4: internal      u32 child, u32 records
7: overflow      data from offset 26 (32), as long as the u16 at 22 says
================ ==========================================================================================

The log, files `log.NNNNNNNNNN` from 1; the LSN (file, offset) of a record is where its header lies:

====== ======== =============================================================================================
offset type     log record
====== ======== =============================================================================================
0      u32      offset of the record before (in a file's first record: of the last one in the file before)
4      u32      length, header included; 0: the log ends here, and zeros follow
8      u32      checksum of what follows, xor offset of the record before, xor length
12     ...      a file's first record: u32 magic 0x00040988, u32 version 19, u32 size of log files, u32 -
12     u32      any other: record type
16     u32      transaction, 0 for none
20     u32 x 2  LSN of the transaction's record before
28     ...      arguments: u32, LSN, or u32 length and bytes: `log.PAGE_CHANGES` and what stands around it
====== ======== =============================================================================================

Both checksums are h = 33 h + byte, modulo 2^32, from 0. Sources: formats page, sections 10.1 and 10.8; page
types, flags, record types and their arguments: libdb 5.3, held against the output of its db5.3_dump and
db5.3_printlog; counts: files that its db5.3_load makes.
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
