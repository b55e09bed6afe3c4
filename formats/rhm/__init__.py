"""The journal on disk: a ring of files that hold records, in version 1 (qpidd's legacystore) and version 2 (ours).

All numbers are little endian. A journal is a directory that holds one info file (`<base>.jinf`, see `jinf`) and
`num-jfiles` files `<base>.NNNN.jdat`, NNNN the file number in four lower-case hex digits.

Geometry, the same in both versions (formats page, section 2.1):

    block     128 bytes   ("dblk") every record begins on one and is padded with 0xff to a whole number of them
    sector    512 bytes   ("sblk") the file header's area, and the least unit of a flush
    page    65536 bytes   the unit of the option jfile-size-pgs
    file      one header sector, then the data area. The data areas of the files, in order of writing, are one
              stream of bytes: a record that reaches the end of a file goes on at 0x200 of the next.

Common beginning of everything that has a header:

    off  size  field
      0   u32  magic    "RHM" and one letter: f file, e enqueue, d dequeue, c commit, a abort, x filler
      4    u8  version  1 or 2
      5    u8  version 1: 0 little endian, 1 big endian writer; version 2: 0
      6   u16  flags

Version 1 (formats page, sections 2.2 to 2.4). `flags` bit 0 is the overwrite indicator, which every lap round the
ring inverts.

    file header       u64 rid @8, u16 file number @16, u16 logical number @18, u32 0 @20,
    (48 bytes)        u64 first record offset @24, u64 seconds @32, u32 nanoseconds @40, u32 0 @44
    enqueue           u64 rid @8, u64 xid size @16, u64 data size @24;              then xid, data, tail
    dequeue           u64 rid @8, u64 dequeued rid @16, u64 xid size @24;           then xid, tail, if xid size > 0
    commit, abort     u64 rid @8, u64 xid size @16;                                 then xid, tail
    filler            one block: the magic, then 0xff
    tail (12 bytes)   u32 the magic inverted, u64 rid

Version 2. A tail, with a checksum, on every record. A file's random salt goes into the checksum of each record
that begins in it, so neither a record of the file's former life nor a block inside a message's body passes for
one. Each record carries the number of the flush that wrote it.

    file header       u64 first flush number @8, u64 first record offset @16, u64 salt @24, u64 queue id @32,
    (64 bytes)        u32 incarnation @40, u16 file number @44, u16 flush alignment in bytes @46,
                      u64 seconds @48, u32 nanoseconds @56, u32 CRC-32C of bytes 0 to 59 @60
    record header     u64 rid @8, u32 xid size @16, u32 flush number (low 32 bits) @20, u64 datum @24
    (32 bytes)        then xid, data, tail. Datum: enqueue the data size, dequeue the dequeued rid, filler the
                      number of blocks it covers, commit and abort 0
    tail (12 bytes)   u32 CRC-32C over data, xid, header, salt, in that order; u64 rid

The header sector of version 2 has room for two headers, at 0 and at 256. A file that is entered gets its new header in
the place of the older one, and the one with the higher first flush number counts. So a header that a crash tears leaves
the one before it, with which the file is what it was: the oldest.

A file is created with a creation header at 256: its first flush number is 0, which no flush has, and its salt and first
record offset are 0 too. It means that no flush has entered the file; the header of the first flush that does goes to 0,
and that of the second takes the creation header's place. So no file's header sector is ever all zeros, and one that is
has lost what it held, the newest file and those after it included. The info file says that the files were created so
(`jinf`); in journals that are older than creation headers a file may be all zeros that was never entered.

`first flush number` is that of the flush that wrote the file header: 64 bits, of which the records carry the low
32. `incarnation` counts how often the journal of this queue id was built anew (resize, conversion).

What a reader of version 2 relies on, to tell a torn flush from damage:

    - a flush is written only after the one before it was synced, and its last record is flagged
    - after a restart, flush numbers go on 65,536 higher, and the first flush is a single filler
    - a file's header is synced before any data goes into that file
    - where the info file is, and tells of creation headers, each file was synced with its own
    - a file is entered only if it held no live record at the last synced flush
    - a flush never comes round to the file in which it began

Flags of records:

    0x0001  v1      all but filler  overwrite indicator
    0x0001  v2      file header     overwrite indicator
    0x0010  v1, v2  enqueue         transient: recovery ignores the record
    0x0010  v1, v2  dequeue         in the transaction prepared list: the decision is commit
    0x0020  v1      enqueue         external: the data size is told, the data is not there
    0x0040  v2      all but filler  moved: relocated from the oldest file; the later copy wins
    0x0080  v2      enqueue         compressed (reserved)
    0x0100  v2      all             last record of its flush
    0x0200  v2      filler          seal: the journal was closed cleanly after this flush

The first record offset is the place in the file of the first record *header*; 0 where no record begins in the
file because one that began earlier fills it (qpidd's resize tool writes the file's length where one ends exactly
at the end).
"""
