"""Kernels: work on the bytes of many messages at once, where a call for each message would take longer than the work.

A *run* is a number of consecutive messages with equal headers, but for the sizes of their bodies, in one buffer, such
as that of a socket read. `bodies` says where the bodies are, and which fields give their sizes.

    find_run           where the bodies of a run are
    sort_messages      the bodies of messages that differ in one part, such as the routing key, as a run for each
    count_bodies       how many bodies of a run are no larger than a size
    place_records      where the records of a run would be in a journal
    encode_records     the records of a run, for a journal of version 2
    encode_dequeues    the records that remove messages with consecutive record ids
    read_records       the bodies in records of messages that differ only in them, as far as these are undamaged
    write_deliveries   the messages of a run, each between the same bytes, with numbers that count up
    write_mixed        likewise, of messages with several routing keys, each after the bytes that have its own
    extend_crc32c      the checksum of one message's bytes, for which a call of `formats.checksum` takes longer

`plain` has these functions in Python, and `compiled` in Cython, with a header in C for CRC-32C. Where modules are
compiled (`hatch_build.py`), that is there, and is used; tests hold it against `plain`, which is used elsewhere.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qstore.formats.checksum import extend_crc32c
    from qstore.formats.kernels.plain import (
        count_bodies,
        encode_dequeues,
        encode_records,
        find_run,
        place_records,
        read_records,
        sort_messages,
        write_deliveries,
        write_mixed,
    )
else:
    try:
        from qstore.formats.kernels.compiled import (
            count_bodies,
            encode_dequeues,
            encode_records,
            extend_crc32c,
            find_run,
            place_records,
            read_records,
            sort_messages,
            write_deliveries,
            write_mixed,
        )
    except ImportError:
        from qstore.formats.checksum import extend_crc32c
        from qstore.formats.kernels.plain import (
            count_bodies,
            encode_dequeues,
            encode_records,
            find_run,
            place_records,
            read_records,
            sort_messages,
            write_deliveries,
            write_mixed,
        )

IS_COMPILED: Final = find_run.__module__.endswith("compiled")
"""Whether the kernels are those in C, so that few messages are worth a call."""

__all__ = [
    "IS_COMPILED",
    "count_bodies",
    "encode_dequeues",
    "encode_records",
    "extend_crc32c",
    "find_run",
    "place_records",
    "read_records",
    "sort_messages",
    "write_deliveries",
    "write_mixed",
]
