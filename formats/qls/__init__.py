"""The linearstore journal (QLS) of qpidd: a line of files, each used once, that hold records.

Source: formats page, section 14.

All numbers are little endian. A store directory `qls` holds:

    dat2/                            the Berkeley DB environment: queues, exchanges, bindings
    jrnl2/<queue name>/<uuid>.jrnl   a queue's journal: symbolic links, absolute, into an in_use directory
    tpl2/<uuid>.jrnl                 the same for the transaction prepared list; queue name "TplStore"
    pNNN/efp/<size>k/<uuid>.jrnl     the empty file pool of partition NNN for files with <size> KiB of data
    pNNN/efp/<size>k/in_use/         files that journals have taken
    pNNN/efp/<size>k/returned/       files on their way back

A journal has no info file: each file's header names its queue and its number, 1, 2, 3 and so on, never used again. A
file without messages is taken from the head of the line. After a crash within a record that had reached into new files,
those files are given back, and their numbers are left out: the next file goes on behind the highest.

    block     128 bytes   every record begins on one and is padded with 0xff to a whole number of them
    sector   4096 bytes   the file header's area, and the least unit of a flush, padded with fillers
    file                  one header sector, then the data area. The data areas, in order of the file numbers, are one
                          stream of bytes: a record that reaches the end of a file goes on at 0x1000 of the next.

    every header      u32 magic @0: "QLS" and one letter: f file, e enqueue, d dequeue, c commit, a abort, x filler;
    (24 bytes)        u16 version, 2 @4; u16 flags @6; u64 serial @8; u64 rid @16
    file header       u16 header sectors, 1 @24; u16 partition @26; u32 0 @28; u64 data size in KiB @32;
    (74 bytes, name)  u64 first record offset @40; u64 seconds @48; u64 nanoseconds @56; u64 file number @64;
                      u16 size of the queue name @72; the queue name @74; zeros
    enqueue           u64 xid size @24, u64 data size @32;           then xid, data (absent if external), tail
    dequeue           u64 dequeued rid @24, u64 xid size @32;        then xid, tail, if xid size > 0
    commit, abort     u64 xid size @24;                              then xid, tail
    filler            one block: the magic, then 0xff
    tail (24 bytes)   u32 the magic inverted, u32 checksum, u64 serial, u64 rid

The *serial* is a random number, new each time a file is taken from the pool. A record carries that of the file in
which its header stands, so what a file's former life left behind never passes for a record of this one. A pooled
file's header has serial, rid, times, number and name size 0: it is *reset*.

The checksum is Adler-32 over everything in the record before its tail. Where the writer had to wait in the middle of a
large record, it went on with a new checksum, over what came from there on, and with the serial of the file in which
it was then: `records.combined_adler32` tells such a tail.

Flags: 0x0010 of an enqueue transient, of a dequeue in the prepared list "the decision is commit"; 0x0020 external.

The first record offset is the place in the file of the first record header; 0 where a record that began earlier
fills the whole file.
"""
