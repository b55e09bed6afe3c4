"""The kinds of damage that a store can have: one table, grouped by where each is found, with its texts.

Each kind lists the effects it can have (see `damage_effects`). The first is the default; where there are several, the
code that detects the damage names the one that applies.

The names are stable: tools show `label`, the name in kebab case, and other programs may rely on it. BROKEN: the data
was read and violates its format. UNREADABLE: the operating system refused to read it. The texts are for people only;
`damage_effects` describes how details are filled in.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from qstore.store.damage_effects import WORDS, Detail, Effect, names_in


class DamageKind(Enum):
    """What is wrong with a file, a record or an object.

    Attributes:
        template: the text, with the names of details in braces.
        effects: the effects it can have, the default first.
        names: the details that the text names.
        all_names: those, and the details that the texts of the effects name.
    """

    def __init__(self, template: str, *effects: Effect) -> None:
        self.template = template
        self.effects = effects
        self.names = names_in(template)
        self.all_names = self.names.union(*(effect.names for effect in effects))

    def __new__(cls, _template: str, *_effects: Effect) -> DamageKind:
        """Create a member with a number as its value, since two kinds may have the same text."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__) + 1
        return member

    @property
    def label(self) -> str:
        """The stable name for tools and other programs, in kebab case."""
        return self.name.lower().replace("_", "-")

    def words(self, **details: Detail) -> str:
        """The text with its details filled in; details that it does not name are ignored."""
        return WORDS.vformat(self.template, (), details)

    # ---- directories ----

    DIRECTORY_UNREADABLE = (
        "directory cannot be listed: {reason}",
        Effect.JOURNALS_NOT_READ, Effect.POOL_FILES_NOT_FOUND, Effect.FOUND_BY_HEADERS,
    )  # fmt: skip
    PATH_UNREADABLE = "path cannot be examined: {reason}", Effect.JOURNAL_NOT_READ, Effect.POOL_FILES_NOT_FOUND
    JOURNAL_BROKEN = "{problem}", Effect.MESSAGES_LOST, Effect.COUNT_AS_UNPREPARED
    JOURNAL_UNREADABLE = "cannot be read: {reason}", Effect.MESSAGES_LOST, Effect.COUNT_AS_UNPREPARED
    SECOND_JOURNAL = 'second journal of queue "{queue}"', Effect.NOT_READ
    QUEUE_WITHOUT_JOURNAL = 'queue "{queue}" has no journal', Effect.MESSAGES_LOST
    ORPHANED_JOURNAL = (
        'journal of queue "{queue}", which is not in the catalogue, holds {messages:%, message(s)}',
        Effect.ORPHAN_LEFT_OUT, Effect.ORPHAN_KEPT_ASIDE, Effect.ORPHAN_NOT_KNOWN, Effect.KEPT_ASIDE,
    )  # fmt: skip

    RECOVERY_UNFINISHED = "incomplete store that an interrupted qstore-recover was building", Effect.RECOVER_AGAIN

    # ---- a journal's info file ----

    INFO_FILE_BROKEN = "{problem}", Effect.INFO_FROM_FILES
    INFO_FILE_CHECKSUM = "{problem}", Effect.INFO_FROM_FILES  # noqa: PIE796
    INFO_FILE_UNREADABLE = "cannot be read: {reason}", Effect.INFO_FROM_FILES
    INFO_FILE_GEOMETRY = (
        "info file states {recorded_files:,} files of {recorded_size:,} bytes, but there are {files:,} of {size:,}",
        Effect.FILE_SIZES_TAKEN,
    )
    INFO_FILE_BASE_NAME = 'info file states another base name, "{recorded}"', Effect.FILE_NAMES_TAKEN
    INFO_FILE_OF_OTHER_QUEUE = (
        (
            "info file of queue id {recorded_queue}, incarnation {recorded_incarnation} in the journal of queue id "
            "{queue}, incarnation {incarnation}"
        ),
        Effect.FILES_BELIEVED,
    )
    INFO_FILE_QUEUE_NAME = (
        'info file states queue "{recorded}", but the directory belongs to "{queue}"', Effect.DIRECTORY_BELIEVED
    )  # fmt: skip
    INFO_FILE_QUEUE_RECORD = "invalid queue record in the info file: {problem}", Effect.ARGUMENTS_LOST

    # ---- a journal file: its header, its size and its position in the journal ----

    FILE_CANNOT_BE_OPENED = "file {number} of {files} cannot be opened: {reason}", Effect.RECORDS_IN_IT_LOST
    FILE_SIZE = (
        "file size is {size:,} bytes, but the journal's geometry requires {expected:,}",
        Effect.RECORDS_BEYOND_END_LOST, Effect.EXCESS_NOT_READ,
    )  # fmt: skip
    FILE_HEADER_BROKEN = (
        "{problem}",
        Effect.PLACED_BY_NUMBER, Effect.SALT_LOST, Effect.SALT_FOUND, Effect.PLACED_BY_RECORDS, Effect.PLACE_UNKNOWN,
    )  # fmt: skip
    FILE_HEADER_CHECKSUM = "{problem}", Effect.PLACED_BY_NUMBER, Effect.SALT_LOST, Effect.SALT_FOUND
    FILE_HEADER_UNREADABLE = (
        "file header cannot be read: {reason}",
        Effect.PLACED_BY_NUMBER, Effect.SALT_LOST, Effect.SALT_FOUND, Effect.PLACED_BY_RECORDS, Effect.PLACE_UNKNOWN,
    )  # fmt: skip
    FILE_HEADER_MISSING = (
        "file header is missing, but the file holds data", Effect.PLACED_BY_NUMBER, Effect.SALT_LOST, Effect.SALT_FOUND
    )  # fmt: skip
    FILE_HEADER_ODD = "{problem}", Effect.NOTHING_READ
    FILE_BEYOND_LAST = "file number exceeds the {files:,} files of the journal", Effect.NOT_READ
    FILE_OF_OTHER_VERSION = (
        "file header of version {recorded} in a journal of version {version}", Effect.BELONGS_ELSEWHERE
    )  # fmt: skip
    FILE_OF_OTHER_INCARNATION = (
        (
            "file of queue id {recorded_queue}, incarnation {recorded_incarnation} in the journal of queue id {queue}, "
            "incarnation {incarnation}"
        ),
        Effect.BELONGS_ELSEWHERE,
    )
    FILE_NUMBER = (
        "file header states file number {recorded}, but the file name states {number}",
        Effect.HEADER_BELIEVED, Effect.NAME_BELIEVED_ONLY, Effect.SALT_NOT_BELIEVED, Effect.NUMBER_TAKEN,
    )  # fmt: skip
    FILE_NUMBERS_DIFFER = (
        "file header states file number {recorded}, but the file name and the logical number state {number}",
        Effect.NAME_BELIEVED,
    )
    FILE_ALL_ZEROS = (
        "file is all zeros, as if never written, but the later file {later} was written", Effect.RECORDS_IN_IT_LOST
    )  # fmt: skip
    FILE_EMPTY = "file is empty, as if never written, but the later file {later} was written", Effect.RECORDS_IN_IT_LOST
    CREATION_HEADER_MISSING = (
        "file is empty, and the header written at its creation is missing", Effect.RECORDS_IF_ANY_LOST
    )  # fmt: skip
    OVERWRITE_INDICATOR = "overwrite indicator {recorded} contradicts the other files", Effect.READ_BETWEEN_OTHERS
    FILE_OF_OTHER_LAP = (
        (
            "overwrite indicator {recorded} contradicts the other files, and the file's records have it too: they "
            "belong to another lap"
        ),
        Effect.NOT_READ_OTHER_LAP,
    )
    FIRST_FLUSH = (
        "first flush number {recorded} is not between those of the neighbouring files", Effect.NOT_READ_OTHER_FILE
    )  # fmt: skip
    HEADER_OLDER = (
        "file header is {seconds} s older than that of the previous file, and its record id 0x{recorded:x} is lower",
        Effect.OF_EARLIER_LAP_OR_ELSEWHERE,
    )
    HEADER_NEWER = (
        "file header is {seconds} s newer than that of the next file, and its record id 0x{recorded:x} is higher",
        Effect.OF_EARLIER_LAP_OR_ELSEWHERE,
    )

    # ---- a linearstore journal: its links and its files ----

    LINK_LEADS_OUT = "link points to a file that is not in the store ({target})", Effect.RECORDS_IN_IT_LOST
    LINK_IS_NONE = "link points to a file that is not in the store (not a regular file)", Effect.RECORDS_IN_IT_LOST
    LINEAR_FILE_CANNOT_BE_OPENED = "file cannot be opened: {reason}", Effect.RECORDS_IN_IT_LOST
    FILE_HEADER_HALF_RESET = "{problem}", Effect.NEVER_WRITTEN
    FILE_NUMBER_MISSING = "file header has no file number", Effect.PLACED_BY_RECORDS, Effect.PLACE_UNKNOWN
    FILE_OF_OTHER_QUEUE = (
        'file of queue "{recorded}" in the journal of queue "{queue}"', Effect.BELONGS_ELSEWHERE, Effect.READ_BY_NUMBER
    )  # fmt: skip
    FILE_NUMBER_TWICE = "second file with number {number}, without a link in the journal's directory", Effect.NOT_READ
    FILE_WITHOUT_LINK = (
        "the journal's directory has no link to this file", Effect.READ_IN_PLACE, Effect.READ_SINCE_NEEDED
    )  # fmt: skip
    FILE_IN_POOL = "the last file of a journal is in the pool of unused files", Effect.READ_IN_PLACE
    FILE_SECOND_COPY = "second copy of file {number}, {first}", Effect.NOT_READ
    FILE_OUT_OF_PLACE = "file number {recorded} contradicts the other files", Effect.PLACED_BY_RIDS
    FILE_DATA_SIZE = (
        "file header states a data area of {recorded} bytes, but the journal's other sizes imply {size}",
        Effect.HEADER_NOT_BELIEVED,
    )
    FILE_SERIAL = (
        "file header has serial 0x{recorded:x}, but the records have 0x{found:x}", Effect.RECORDS_SERIAL_TAKEN
    )  # fmt: skip
    FILE_MISSING = "file {first} is missing", Effect.RECORDS_IN_IT_LOST
    FILES_MISSING = "files {first} to {last} are missing", Effect.RECORDS_IN_THEM_LOST

    # ---- the linearstore's pools ----

    POOL_FILE_BROKEN = "{problem}", Effect.NO_JOURNAL_TAKES_IT
    POOL_FILE_UNREADABLE = "cannot be read: {reason}", Effect.NO_JOURNAL_TAKES_IT
    POOL_FILE_SIZE = "file size is {size:,} bytes, but the pool's files have {expected:,}", Effect.NO_JOURNAL_TAKES_IT
    POOL_FILE_DATA_SIZE = (
        "file header states a data area of {recorded} bytes, but the pool is for another size",
        Effect.NO_JOURNAL_TAKES_IT,
    )
    POOL_FILE_PARTITION = (
        "file header states partition {recorded}, but the file is in partition {partition}",
        Effect.NO_JOURNAL_TAKES_IT, Effect.RECORDS_READ,
    )  # fmt: skip
    POOL_FILE_HALF_RESET = "file header is neither reset nor that of a journal file", Effect.RESET_BY_QPIDD
    POOL_FILE_TWICE = "partition {partition} has a file of the same name", Effect.NOT_READ

    # ---- a journal's records ----

    RECORD_BROKEN = "{problem}", Effect.BLOCKS_SKIPPED, Effect.BLOCK_SKIPPED
    RECORD_CHECKSUM = "{problem}", Effect.BLOCKS_SKIPPED, Effect.BLOCK_SKIPPED  # noqa: PIE796
    MORE_BREAKS = "the chain of records is broken in more than {breaks} places", Effect.SKIPPED_UNLISTED
    SECTORS_UNREADABLE = "{size:,} bytes cannot be read: {reason}", Effect.TAKEN_FOR_ZEROS
    JOURNAL_BREAKS_OFF = "cannot be read: {reason}", Effect.REST_OF_JOURNAL_LOST
    FIRST_RECORD_NOT_TOLD = (
        "file header states that no record begins in the file, but one begins at 0x{found:x}",
        Effect.READING_BEGINS_THERE,
    )
    FIRST_RECORD_BEFORE = (
        "file header states that the first record is at 0x{recorded:x}, but one begins earlier, at 0x{found:x}",
        Effect.READING_BEGINS_THERE,
    )
    FIRST_RECORD_ELSEWHERE = (
        "file header states that the first record is at 0x{recorded:x}, but it is at 0x{found:x}",
        Effect.CHAIN_LEADS_THERE,
    )
    FIRST_RECORD_OUTSIDE = "first record offset 0x{recorded:x} is outside the file", Effect.FIRST_SEARCHED
    FLUSHES_MISSING = (
        "the file's last record is of flush {last}, but the next file's first record is of flush {first}",
        Effect.OF_EARLIER_LAP,
    )
    RECORD_FLAGS = "{record} record has unknown flags 0x{flags:04x}", Effect.FLAGS_IGNORED
    PADDING = "padding of {record} record is not filled with a single byte value", Effect.NOTHING_READ

    # ---- records that contradict each other or the file headers ----

    RID_TWICE = "duplicate record id: it is already enqueued", Effect.FIRST_KEPT
    MORE_RIDS_TWICE = "{records:% more record(s)} with duplicate record ids", Effect.FIRST_OF_EACH_KEPT
    DEQUEUED_TWICE = "dequeue of record 0x{target:x}, which was already dequeued", Effect.REMOVES_NOTHING
    DEQUEUED_NOT_THERE = "dequeue of record 0x{target:x}, which is not enqueued", Effect.REMOVES_NOTHING
    TRANSACTION_NOT_OPEN = "{record} of transaction {xid}, which is not open", Effect.CHANGES_NOTHING
    MORE_UNFOUNDED = (
        "{records:% more record(s)} without their messages or transactions", Effect.THEY_CHANGE_NOTHING
    )  # fmt: skip
    BEGINNING_LOST = (
        "file is all zeros, as if never written, but {messages:% dequeued message(s)} cannot be found in the journal",
        Effect.RECORDS_BEHIND_LOST_TOO,
    )
    FLUSHES_LOST = (
        "file was first written by flush {recorded}, but the journal's records end with flush {last}",
        Effect.LATER_FLUSHES_LOST,
    )
    SEAL_MISSING = (
        "the store was closed cleanly, but the journal ends without a seal: {problem}", Effect.RECORDS_THERE_LOST
    )  # fmt: skip
    RIDS_BEYOND_RESERVED = (
        "record id 0x{highest:x} is in use, but only ids below 0x{reserved:x} are reserved", Effect.NEW_RIDS_GO_ON
    )  # fmt: skip

    # ---- messages, and the second pass over a journal ----

    MESSAGE_UNDECODABLE = (
        "message header cannot be decoded: {problem}", Effect.DELIVERED_AS_IT_IS, Effect.SHOWN_AS_BODY
    )  # fmt: skip
    CONTENT_DAMAGED = (
        "{problem}", Effect.NOT_DELIVERED, Effect.SHOWN_AS_BODY, Effect.MESSAGE_LEFT_OUT
    )  # fmt: skip
    MESSAGE_UNREADABLE = "part of the message cannot be read", Effect.MESSAGE_LEFT_OUT
    MESSAGE_CHANGED = "the message has changed between two reads", Effect.MESSAGE_LEFT_OUT
    TRANSIENT_MESSAGE = (
        "record is flagged transient, but its message is persistent", Effect.IGNORED_AS_TRANSIENT
    )  # fmt: skip
    TRANSIENT_PREPARED = (
        "record is flagged transient, but the prepared list holds no transient records", Effect.IGNORED_AS_TRANSIENT
    )  # fmt: skip
    CHECKSUMS_DISAGREE = (
        "{record} record has checksum 0x{recorded:08x}, but the computed one is 0x{computed:08x}", Effect.PLEASE_REPORT
    )  # fmt: skip
    COUNTS_DISAGREE = (
        "enqueues, dequeues, commits and aborts are {first} in the first pass, but {second} in the second",
        Effect.PLEASE_REPORT,
    )
    MESSAGES_DISAGREE = "the two passes end with different outstanding messages", Effect.PLEASE_REPORT

    # ---- the transaction prepared list ----

    PREPARED_LIST_NO_DIRECTORY = (
        "the transaction prepared list is not a directory", Effect.COUNT_AS_UNPREPARED
    )  # fmt: skip
    PREPARED_LIST_MISSING = "the transaction prepared list is missing", Effect.IN_DOUBT_DROPPED
    PREPARED_LIST_NEEDED = (
        "the transaction prepared list is missing, but journals hold transactions", Effect.COUNT_AS_UNPREPARED
    )  # fmt: skip
    PREPARED_LIST_BLANK = (
        "the transaction prepared list was never written to, but journals hold transactions",
        Effect.COUNT_AS_UNPREPARED,
    )
    PREPARED_LIST_GONE = (
        "the transaction prepared list is missing, but the store is recorded to have had one",
        Effect.COUNT_AS_UNPREPARED,
    )

    # ---- how the store was closed ----

    STORE_FILE_MISSING = "the STORE file is missing", Effect.NOT_CLOSED_CLEANLY
    STORE_FILE_BROKEN = "{problem}", Effect.NOT_CLOSED_CLEANLY
    STORE_FILE_CHECKSUM = "{problem}", Effect.NOT_CLOSED_CLEANLY  # noqa: PIE796
    STORE_FILE_OF_OTHER_STORE = (
        "STORE file of store {recorded}, but the catalogue is that of store {store}", Effect.NOT_CLOSED_CLEANLY
    )  # fmt: skip
    CLOSE_RECORD_MISSING = "the record of the last clean close is missing", Effect.NOT_COMPARED
    CLOSE_RECORD_BROKEN = "{problem}", Effect.NOT_COMPARED
    CLOSE_RECORD_CHECKSUM = "{problem}", Effect.NOT_COMPARED  # noqa: PIE796
    CLOSE_RECORD_UNREADABLE = "cannot be read: {reason}", Effect.NOT_COMPARED
    CLOSE_RECORD_OF_OTHER_STORE = (
        "record of the last clean close is that of store {recorded}, but this is store {store}", Effect.NOT_COMPARED
    )  # fmt: skip
    OLD_INCARNATION = (
        "journal has incarnation {recorded}, but a journal of incarnation {incarnation} existed",
        Effect.WRITTEN_TO_LATER_LOST,
    )
    OTHER_FLUSH = (
        ("journal ended with flush {then} and held {messages:% message(s)} when the store was last closed cleanly, "
        "but now ends with flush {now}"),
        Effect.WRITTEN_SINCE_LOST, Effect.OF_ANOTHER_TIME,
    )  # fmt: skip
    NO_LONGER_EMPTY = (
        "journal was empty when the store was last closed cleanly, but now ends with flush {now}",
        Effect.OF_ANOTHER_TIME,
    )
    NO_RECORD_LEFT = (
        ("journal ended with flush {then} and held {messages:% message(s)} when the store was last closed cleanly, "
        "but now has no readable record"),
        Effect.HELD_LOST, Effect.HELD_NO_MESSAGE,
    )  # fmt: skip
    OTHER_MESSAGE_COUNT = (
        "journal held {messages:% message(s)} when the store was last closed cleanly, but now holds {now}",
        Effect.MESSAGES_COUNTED_LOST, Effect.CONSUMED_MAY_COME_BACK,
    )  # fmt: skip
    SYNC_RECORD_BROKEN = "{problem}", Effect.NOT_BOUNDED
    SYNC_RECORD_CHECKSUM = "{problem}", Effect.NOT_BOUNDED  # noqa: PIE796
    SYNC_RECORD_UNREADABLE = "cannot be read: {reason}", Effect.NOT_BOUNDED
    SYNC_RECORD_OF_OTHER_STORE = (
        "record of what was synced is that of store {recorded}, but this is store {store}", Effect.NOT_BOUNDED
    )  # fmt: skip
    SYNCED_FLUSHES_LOST = (
        "flush {then} of the journal was synced, but it now ends in flush {now}", Effect.SYNCED_END_LOST
    )  # fmt: skip
    SYNCED_JOURNAL_BLANK = (
        "flush {then} of the journal was synced, but it now has no readable record", Effect.HELD_LOST
    )  # fmt: skip
    QUEUE_GONE = (
        "queue {queue} is missing; its journal {journal} held {messages:% message(s)} at the last clean close",
        Effect.QUEUE_LOST,
    )

    EMPTY_QUEUE_GONE = (
        'queue "{queue}" is not in the catalogue, but its journal, which holds no message, was written to',
        Effect.QUEUE_LOST,
    )

    # ---- the catalogue and its second copy ----

    CATALOGUE_MISSING = "the catalogue is missing", Effect.TOPOLOGY_LOST
    CATALOGUE_BROKEN = "{problem}", Effect.TOPOLOGY_LOST
    CATALOGUE_NOT_BELIEVED = (
        "{problem}{missing:?; missing in it: %}{gone:?; deleted since: %}",
        Effect.COPY_TAKEN, Effect.COPY_TAKEN_UNCERTAIN,
    )  # fmt: skip
    CATALOGUE_BEHIND = "{problem}", Effect.QUEUES_FROM_JOURNALS
    TOPOLOGY_COPY_UNUSABLE = (
        "the second copy of the catalogue is unusable: {problem}", Effect.COPY_REWRITTEN, Effect.COPY_USELESS
    )  # fmt: skip
    CATALOGUE_COPY_DAMAGED = "{problem}", Effect.QUEUES_FROM_JOURNALS  # noqa: PIE796
    CATALOGUE_ENTRY = "{problem}{key:? (key %)}", Effect.REST_READ
    CATALOGUE_RESERVATION = "{problem}", Effect.RIDS_GO_ON
    OBJECT_UNDECODABLE = "{object}: {problem}", Effect.OBJECT_LEFT_OUT
    OBJECT_WITHOUT_ID = "invalid record id 0", Effect.OBJECT_LEFT_OUT
    NAME_TWICE = '{object} {number} has the same name as {object} {first}, "{name}"', Effect.BOTH_KEPT
    QUEUE_TWICE = (
        'duplicate queue{number:? %} "{queue}"', Effect.OBJECT_LEFT_OUT, Effect.MESSAGES_GO_UNBOUND
    )  # fmt: skip
    QUEUE_NAME_LENGTH = (
        "a queue name of {length} characters cannot be stored: it must have 1 to 255 bytes of text",
        Effect.OBJECT_LEFT_OUT, Effect.MESSAGES_GO_UNBOUND,
    )  # fmt: skip

    # ---- qpidd's Berkeley DB files ----

    ENVIRONMENT_UNREADABLE = "cannot be read: {reason}", Effect.TOPOLOGY_LOST
    ENVIRONMENT_DAMAGED = "{problem}", Effect.READABLE_READ, Effect.READ_FROM_LOG
    ENVIRONMENT_WITHOUT_LOG = (
        "log files (log.*) are missing: changes stored only in the log are lost", Effect.QUEUES_FROM_JOURNALS
    )  # fmt: skip
    ENVIRONMENT_NOT_RECOVERED = (
        "the newest changes may be missing; install Berkeley DB's recovery tool to read them (Debian: db5.3-util)",
        Effect.READABLE_CONVERTED,
    )
    ENVIRONMENT_KEY = "key of {size:,} bytes instead of 8", Effect.OBJECT_LEFT_OUT

    # ---- journals that are not in the catalogue, at a start ----

    UNKNOWN_QUEUE = (
        (
            'queue "{queue}" is not in the catalogue, but its journal holds {messages:% message(s)}'
            "{transactions:? and % open transaction(s)}"
        ),
        Effect.MADE_AGAIN,
    )
    UNKNOWN_QUEUE_UNNAMED = "the journal's info file does not name its queue", Effect.MESSAGES_GO_TO
    UNKNOWN_QUEUE_NAME_TAKEN = 'another queue has the name "{queue}"', Effect.MESSAGES_GO_TO
    UNKNOWN_JOURNAL_UNREADABLE = "journal of an unknown queue cannot be read", Effect.KEPT_IN_ORPHANS
    UNKNOWN_JOURNAL = (
        ("journal of an unknown queue with {messages:% message(s)}{transactions:? and % open transaction(s)}"),
        Effect.KEPT_IN_ORPHANS,
    )
    JOURNAL_NOT_IN_USE = (
        (
            'unused second journal of queue "{queue}", with {messages:% message(s)}'
            "{transactions:? and % open transaction(s)}"
        ),
        Effect.KEPT_IN_ORPHANS, Effect.NOT_MISSED,
    )  # fmt: skip
    DIRECTORY_WITHOUT_JOURNAL = "directory does not hold a queue's journal", Effect.NOT_MISSED


CHECKSUM_KINDS: Final = frozenset(
    {
        DamageKind.FILE_HEADER_CHECKSUM,
        DamageKind.INFO_FILE_CHECKSUM,
        DamageKind.RECORD_CHECKSUM,
        DamageKind.STORE_FILE_CHECKSUM,
        DamageKind.CLOSE_RECORD_CHECKSUM,
        DamageKind.SYNC_RECORD_CHECKSUM,
    }
)
"""The kinds that report a checksum mismatch."""
