"""The damages that a store can have: a table, grouped by where they are found, with its words.

Each kind lists what reading can make of it, as `damage_effects` has it; the first effect is the usual one, and where
there are several, the code that finds the damage names the one that holds.

The names are stable: tools show `label`, the name in kebab case, and other programs may rely on it. What is BROKEN was
read and does not follow its format; what is UNREADABLE the system does not let be read. The words are for people alone;
`damage_effects` says how details stand in them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from store.damage_effects import WORDS, Detail, Effect, names_in


class DamageKind(Enum):
    """What is wrong.

    Attributes:
        template: the words.
        effects: what reading can make of it, the usual one first.
        names: the details that the words name.
        all_names: those, and the ones that the words of the effects name.
    """

    def __init__(self, template: str, *effects: Effect) -> None:
        self.template = template
        self.effects = effects
        self.names = names_in(template)
        self.all_names = self.names.union(*(effect.names for effect in effects))

    def __new__(cls, _template: str, *_effects: Effect) -> DamageKind:
        """A member with a number for its value: two kinds may have the same words."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__) + 1
        return member

    @property
    def label(self) -> str:
        """The name by which tools and other programs know it, in kebab case."""
        return self.name.lower().replace("_", "-")

    def words(self, **details: Detail) -> str:
        """The words, with the details that they name; others are passed over."""
        return WORDS.vformat(self.template, (), details)

    # ---- a directory, or what should be one ----

    DIRECTORY_UNREADABLE = (
        "cannot be looked into: {reason}",
        Effect.JOURNALS_NOT_READ, Effect.POOL_FILES_NOT_FOUND, Effect.FOUND_BY_HEADERS,
    )  # fmt: skip
    PATH_UNREADABLE = "cannot be looked at: {reason}", Effect.JOURNAL_NOT_READ, Effect.POOL_FILES_NOT_FOUND
    JOURNAL_BROKEN = "{problem}", Effect.MESSAGES_LOST, Effect.COUNT_AS_UNPREPARED
    JOURNAL_UNREADABLE = "cannot be read: {reason}", Effect.MESSAGES_LOST, Effect.COUNT_AS_UNPREPARED
    SECOND_JOURNAL = 'a second journal of queue "{queue}"', Effect.NOT_READ
    QUEUE_WITHOUT_JOURNAL = 'queue "{queue}" has no journal', Effect.MESSAGES_LOST
    ORPHANED_JOURNAL = (
        'journal of queue "{queue}", which the catalogue does not know, holds {messages:%, message(s)}',
        Effect.ORPHAN_LEFT_OUT, Effect.ORPHAN_KEPT_ASIDE, Effect.ORPHAN_NOT_KNOWN, Effect.KEPT_ASIDE,
    )  # fmt: skip

    RECOVERY_UNFINISHED = "a store that qstore-recover was building, which is not whole", Effect.RECOVER_AGAIN

    # ---- a journal's info file ----

    INFO_FILE_BROKEN = "{problem}", Effect.INFO_FROM_FILES
    INFO_FILE_CHECKSUM = "{problem}", Effect.INFO_FROM_FILES  # noqa: PIE796
    INFO_FILE_UNREADABLE = "cannot be read: {reason}", Effect.INFO_FROM_FILES
    INFO_FILE_GEOMETRY = (
        "info file tells {told_files} files of {told_size} bytes; there are {files} of {size}",
        Effect.FILE_SIZES_TAKEN,
    )
    INFO_FILE_BASE_NAME = 'info file tells the base name "{told}"', Effect.FILE_NAMES_TAKEN
    INFO_FILE_OF_OTHER_QUEUE = (
        (
            "info file of queue id {told_queue}, incarnation {told_incarnation} in the journal of queue id {queue}, "
            "incarnation {incarnation}"
        ),
        Effect.FILES_BELIEVED,
    )
    INFO_FILE_QUEUE_NAME = (
        'info file tells queue "{told}", the directory is that of "{queue}"', Effect.DIRECTORY_BELIEVED
    )  # fmt: skip
    INFO_FILE_QUEUE_RECORD = "queue record in the info file: {problem}", Effect.ARGUMENTS_LOST

    # ---- a journal's file: its header, its size and its place among the others ----

    FILE_CANNOT_BE_OPENED = "file {number} of {files} cannot be opened: {reason}", Effect.RECORDS_IN_IT_LOST
    FILE_SIZE = (
        "file has {size} bytes, the journal's geometry says {expected}",
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
        "no file header, though the file holds data", Effect.PLACED_BY_NUMBER, Effect.SALT_LOST, Effect.SALT_FOUND
    )  # fmt: skip
    FILE_HEADER_ODD = "{problem}", Effect.NOTHING_READ
    FILE_BEYOND_LAST = "file beyond the {files} files of the journal", Effect.NOT_READ
    FILE_OF_OTHER_VERSION = (
        "file header of version {told} in a journal of version {version}", Effect.BELONGS_ELSEWHERE
    )  # fmt: skip
    FILE_OF_OTHER_INCARNATION = (
        (
            "file of queue id {told_queue}, incarnation {told_incarnation} in the journal of queue id {queue}, "
            "incarnation {incarnation}"
        ),
        Effect.BELONGS_ELSEWHERE,
    )
    FILE_NUMBER = (
        "header says that this is file {told}, its name says {number}",
        Effect.HEADER_BELIEVED, Effect.NAME_BELIEVED_ONLY, Effect.SALT_NOT_BELIEVED, Effect.NUMBER_TAKEN,
    )  # fmt: skip
    FILE_NUMBERS_DIFFER = (
        "header says that this is file {told}, its name and its logical number say {number}", Effect.NAME_BELIEVED
    )  # fmt: skip
    FILE_ALL_ZEROS = (
        "file is all zeros, as if never written, though file {later} was", Effect.RECORDS_IN_IT_LOST
    )  # fmt: skip
    FILE_EMPTY = "file holds nothing, as if never written, though file {later} was", Effect.RECORDS_IN_IT_LOST
    CREATION_HEADER_MISSING = (
        "file holds nothing, and the header that it was created with is not there", Effect.RECORDS_IF_ANY_LOST
    )  # fmt: skip
    OVERWRITE_INDICATOR = "overwrite indicator {told} contradicts the other files", Effect.READ_BETWEEN_OTHERS
    FILE_OF_OTHER_LAP = (
        (
            "overwrite indicator {told} contradicts the other files, and the file's records have it too: they are of "
            "another lap"
        ),
        Effect.NOT_READ_OTHER_LAP,
    )
    FIRST_FLUSH = (
        "first flush number {told} is not one between those of the files around it", Effect.NOT_READ_OTHER_FILE
    )  # fmt: skip
    HEADER_OLDER = (
        "file header is older than that of the file before it, by {seconds} s, and so is its record id, 0x{told:x}",
        Effect.OF_EARLIER_LAP_OR_ELSEWHERE,
    )
    HEADER_NEWER = (
        "file header is newer than that of the file after it, by {seconds} s, and so is its record id, 0x{told:x}",
        Effect.OF_EARLIER_LAP_OR_ELSEWHERE,
    )

    # ---- a linearstore's journal: its links and its files ----

    LINK_LEADS_OUT = "link to a file that is not in the store ({target})", Effect.RECORDS_IN_IT_LOST
    LINK_IS_NONE = "link to a file that is not in the store (no regular file)", Effect.RECORDS_IN_IT_LOST
    LINEAR_FILE_CANNOT_BE_OPENED = "file cannot be opened: {reason}", Effect.RECORDS_IN_IT_LOST
    FILE_HEADER_HALF_RESET = "{problem}", Effect.NEVER_WRITTEN
    FILE_NUMBER_MISSING = "file header without a file number", Effect.PLACED_BY_RECORDS, Effect.PLACE_UNKNOWN
    FILE_OF_OTHER_QUEUE = (
        'file of queue "{told}" in the journal of queue "{queue}"', Effect.BELONGS_ELSEWHERE, Effect.READ_BY_NUMBER
    )  # fmt: skip
    FILE_NUMBER_TWICE = "a second file {number}, to which the journal's directory has no link", Effect.NOT_READ
    FILE_WITHOUT_LINK = (
        "the journal's directory has no link to it", Effect.READ_IN_PLACE, Effect.READ_SINCE_NEEDED
    )  # fmt: skip
    FILE_IN_POOL = "the end of a journal lies in the pool, among the files that wait for one", Effect.READ_IN_PLACE
    FILE_SECOND_COPY = "a second copy of file {number}, {first}", Effect.NOT_READ
    FILE_OUT_OF_PLACE = "file number {told} contradicts the other files", Effect.PLACED_BY_RIDS
    FILE_DATA_SIZE = (
        "file header tells {told} bytes of data area, the journal's other sizes {size}", Effect.HEADER_NOT_BELIEVED
    )  # fmt: skip
    FILE_SERIAL = "file header tells serial 0x{told:x}, the records have 0x{found:x}", Effect.RECORDS_SERIAL_TAKEN
    FILE_MISSING = "file {first} is missing", Effect.RECORDS_IN_IT_LOST
    FILES_MISSING = "files {first} to {last} are missing", Effect.RECORDS_IN_THEM_LOST

    # ---- a linearstore's pools ----

    POOL_FILE_BROKEN = "{problem}", Effect.NO_JOURNAL_TAKES_IT
    POOL_FILE_UNREADABLE = "cannot be read: {reason}", Effect.NO_JOURNAL_TAKES_IT
    POOL_FILE_SIZE = "file has {size} bytes, those of its pool have {expected}", Effect.NO_JOURNAL_TAKES_IT
    POOL_FILE_DATA_SIZE = (
        "file header tells {told} bytes of data area, its pool is for another size", Effect.NO_JOURNAL_TAKES_IT
    )  # fmt: skip
    POOL_FILE_PARTITION = (
        "file header tells partition {told}, the file lies in partition {partition}",
        Effect.NO_JOURNAL_TAKES_IT, Effect.RECORDS_READ,
    )  # fmt: skip
    POOL_FILE_HALF_RESET = "file header is neither reset nor that of a journal", Effect.RESET_BY_QPIDD
    POOL_FILE_TWICE = "a file of the same name is in partition {partition}", Effect.NOT_READ

    # ---- a journal's records ----

    RECORD_BROKEN = "{problem}", Effect.BLOCKS_SKIPPED, Effect.BLOCK_SKIPPED
    RECORD_CHECKSUM = "{problem}", Effect.BLOCKS_SKIPPED, Effect.BLOCK_SKIPPED  # noqa: PIE796
    MORE_BREAKS = "more than {breaks} places where the chain of records is broken", Effect.SKIPPED_UNLISTED
    SECTORS_UNREADABLE = "{size} bytes cannot be read: {reason}", Effect.TAKEN_FOR_ZEROS
    JOURNAL_BREAKS_OFF = "cannot be read: {reason}", Effect.REST_OF_JOURNAL_LOST
    FIRST_RECORD_NOT_TOLD = (
        "file header says that no record begins in the file; there is one at 0x{found:x}", Effect.READING_BEGINS_THERE
    )  # fmt: skip
    FIRST_RECORD_BEFORE = (
        "file header says that the first record is at 0x{told:x}; there is one at 0x{found:x}",
        Effect.READING_BEGINS_THERE,
    )
    FIRST_RECORD_ELSEWHERE = (
        "file header says that the first record is at 0x{told:x}; it is at 0x{found:x}", Effect.CHAIN_LEADS_THERE
    )  # fmt: skip
    FIRST_RECORD_OUTSIDE = "first record offset 0x{told:x} is not in the file", Effect.FIRST_SEARCHED
    FLUSHES_MISSING = (
        "the file's records end with flush {last}, those of the next file begin with flush {first}",
        Effect.OF_EARLIER_LAP,
    )
    RECORD_FLAGS = "{record} record with unknown flags 0x{flags:04x}", Effect.FLAGS_IGNORED
    PADDING = "padding of {record} record is not filled with one byte", Effect.NOTHING_READ

    # ---- records that contradict each other, or the file headers ----

    RID_TWICE = "record id is enqueued already", Effect.FIRST_KEPT
    MORE_RIDS_TWICE = "{records} more records whose ids are enqueued already", Effect.FIRST_OF_EACH_KEPT
    DEQUEUED_TWICE = "dequeue of record 0x{target:x}, which was dequeued before", Effect.REMOVES_NOTHING
    DEQUEUED_NOT_THERE = "dequeue of record 0x{target:x}, which is not enqueued", Effect.REMOVES_NOTHING
    TRANSACTION_NOT_OPEN = "{record} of transaction {xid}, which is not open", Effect.CHANGES_NOTHING
    MORE_UNFOUNDED = (
        "{records} more records about messages or transactions that are not there", Effect.THEY_CHANGE_NOTHING
    )  # fmt: skip
    BEGINNING_LOST = (
        "file is all zeros, as if never written, though {messages} messages were dequeued that are not in the journal",
        Effect.RECORDS_BEHIND_LOST_TOO,
    )
    FLUSHES_LOST = (
        "file was entered by flush {told}, and the journal's records end with flush {last}", Effect.LATER_FLUSHES_LOST
    )  # fmt: skip
    SEAL_MISSING = (
        "the store was closed cleanly, and the journal ends without a seal: {problem}", Effect.RECORDS_THERE_LOST
    )  # fmt: skip
    RIDS_BEYOND_RESERVED = (
        "record id 0x{highest:x} is in use, and only those below 0x{reserved:x} are reserved", Effect.NEW_RIDS_GO_ON
    )  # fmt: skip

    # ---- messages, and a second reading ----

    MESSAGE_UNDECODABLE = (
        "message header cannot be decoded: {problem}", Effect.DELIVERED_AS_IT_IS, Effect.SHOWN_AS_BODY
    )  # fmt: skip
    MESSAGE_UNREADABLE = "a part of the message cannot be read", Effect.MESSAGE_LEFT_OUT
    MESSAGE_CHANGED = "the message is not the same when it is read a second time", Effect.MESSAGE_LEFT_OUT
    TRANSIENT_MESSAGE = (
        "record is flagged transient, though its message is persistent", Effect.IGNORED_AS_TRANSIENT
    )  # fmt: skip
    TRANSIENT_PREPARED = (
        "record is flagged transient, though the prepared list has none", Effect.IGNORED_AS_TRANSIENT
    )  # fmt: skip
    CHECKSUMS_DISAGREE = (
        "{record} record with checksum 0x{told:08x}; computed anew it is 0x{computed:08x}", Effect.PLEASE_REPORT
    )  # fmt: skip
    COUNTS_DISAGREE = (
        "enqueues, dequeues, commits and aborts are {first} in the first reading, {second} in the second",
        Effect.PLEASE_REPORT,
    )
    MESSAGES_DISAGREE = "the two readings leave different messages outstanding", Effect.PLEASE_REPORT

    # ---- the transaction prepared list ----

    PREPARED_LIST_NO_DIRECTORY = (
        "is no directory, and should be that of the transaction prepared list", Effect.COUNT_AS_UNPREPARED
    )  # fmt: skip
    PREPARED_LIST_MISSING = "there is no transaction prepared list", Effect.IN_DOUBT_DROPPED
    PREPARED_LIST_NEEDED = (
        "there is no transaction prepared list, though journals hold transactions", Effect.COUNT_AS_UNPREPARED
    )  # fmt: skip
    PREPARED_LIST_BLANK = (
        "the transaction prepared list was never written to, though journals hold transactions",
        Effect.COUNT_AS_UNPREPARED,
    )
    PREPARED_LIST_GONE = (
        "there is no transaction prepared list, and there was one when the store was last closed cleanly",
        Effect.COUNT_AS_UNPREPARED,
    )

    # ---- how the store was closed ----

    STORE_FILE_MISSING = "there is no STORE file", Effect.NOT_CLOSED_CLEANLY
    STORE_FILE_BROKEN = "{problem}", Effect.NOT_CLOSED_CLEANLY
    STORE_FILE_CHECKSUM = "{problem}", Effect.NOT_CLOSED_CLEANLY  # noqa: PIE796
    STORE_FILE_OF_OTHER_STORE = (
        "STORE file of store {told} beside the catalogue of store {store}", Effect.NOT_CLOSED_CLEANLY
    )  # fmt: skip
    CLOSE_RECORD_MISSING = (
        "there is no such file, which tells what each journal held when the store was closed", Effect.NOT_COMPARED
    )  # fmt: skip
    CLOSE_RECORD_BROKEN = "{problem}", Effect.NOT_COMPARED
    CLOSE_RECORD_CHECKSUM = "{problem}", Effect.NOT_COMPARED  # noqa: PIE796
    CLOSE_RECORD_UNREADABLE = "cannot be read: {reason}", Effect.NOT_COMPARED
    CLOSE_RECORD_OF_OTHER_STORE = "it is that of store {told}, and this is store {store}", Effect.NOT_COMPARED
    OLD_INCARNATION = (
        "journal of incarnation {told}, where there was one of {incarnation}", Effect.WRITTEN_TO_LATER_LOST
    )  # fmt: skip
    OTHER_FLUSH = (
        ("journal ended with flush {then} and held {messages:% message(s)} when the store was last closed cleanly, "
        "and ends with flush {now}"),
        Effect.WRITTEN_SINCE_LOST, Effect.OF_ANOTHER_TIME,
    )  # fmt: skip
    NO_LONGER_EMPTY = (
        "journal was empty when the store was last closed cleanly, and ends with flush {now}", Effect.OF_ANOTHER_TIME
    )  # fmt: skip
    NO_RECORD_LEFT = (
        ("journal ended with flush {then} and held {messages:% message(s)} when the store was last closed cleanly, "
        "and has no record now that could be read"),
        Effect.HELD_LOST, Effect.HELD_NO_MESSAGE,
    )  # fmt: skip
    OTHER_MESSAGE_COUNT = (
        "journal held {messages:% message(s)} when the store was closed, and holds {now} now",
        Effect.MESSAGES_COUNTED_LOST, Effect.CONSUMED_MAY_COME_BACK,
    )  # fmt: skip
    QUEUE_GONE = (
        "queue {queue}, with {messages:% message(s)} in journal {journal} when the store was closed, is not there",
        Effect.QUEUE_LOST,
    )

    # ---- the catalogue, and its second copy ----

    CATALOGUE_MISSING = "there is no catalogue", Effect.WIRING_LOST
    CATALOGUE_BROKEN = "{problem}", Effect.WIRING_LOST
    CATALOGUE_NOT_BELIEVED = "{problem}{missing:?; not in it: %}{gone:?; deleted since: %}", Effect.COPY_TAKEN
    CATALOGUE_COPY_DAMAGED = "{problem}", Effect.QUEUES_FROM_JOURNALS
    CATALOGUE_ENTRY = "{problem}{key:? (key %)}", Effect.REST_READ
    CATALOGUE_RESERVATION = "{problem}", Effect.RIDS_GO_ON
    OBJECT_UNDECODABLE = "{object}: {problem}", Effect.OBJECT_LEFT_OUT
    OBJECT_WITHOUT_ID = "a record with the id 0, which none can have", Effect.OBJECT_LEFT_OUT
    NAME_TWICE = '{object} {number} has the name of {object} {first}, "{name}"', Effect.BOTH_KEPT
    QUEUE_TWICE = (
        'queue{number:? %} "{queue}" is there twice', Effect.OBJECT_LEFT_OUT, Effect.MESSAGES_GO_UNBOUND
    )  # fmt: skip
    QUEUE_NAME_LENGTH = (
        "a queue's name of {length} characters, which no queue can have",
        Effect.OBJECT_LEFT_OUT, Effect.MESSAGES_GO_UNBOUND,
    )  # fmt: skip

    # ---- qpidd's Berkeley DB files ----

    ENVIRONMENT_UNREADABLE = "cannot be read: {reason}", Effect.WIRING_LOST
    ENVIRONMENT_DAMAGED = "{problem}", Effect.READABLE_READ, Effect.READ_FROM_LOG
    ENVIRONMENT_WITHOUT_LOG = (
        "there is no log file (log.*): changes that stood only there are lost", Effect.QUEUES_FROM_JOURNALS
    )  # fmt: skip
    ENVIRONMENT_NOT_RECOVERED = (
        "the newest changes may be missing: Berkeley DB's recovery is needed for them (Debian's db5.3-util)",
        Effect.READABLE_CONVERTED,
    )
    ENVIRONMENT_KEY = "key of {size} bytes instead of 8", Effect.OBJECT_LEFT_OUT

    # ---- journals that the catalogue does not know, at a start ----

    UNKNOWN_QUEUE = (
        (
            'the catalogue does not know queue "{queue}", whose journal holds {messages:% message(s)}'
            "{transactions:? and % open transaction(s)}"
        ),
        Effect.MADE_AGAIN,
    )
    UNKNOWN_QUEUE_UNNAMED = "its info file does not tell the queue", Effect.MESSAGES_GO_TO
    UNKNOWN_QUEUE_NAME_TAKEN = 'there is another queue "{queue}"', Effect.MESSAGES_GO_TO
    UNKNOWN_JOURNAL_UNREADABLE = "a journal of no known queue, which cannot be read", Effect.KEPT_IN_ORPHANS
    UNKNOWN_JOURNAL = (
        (
            "a journal of no queue that can be told, with {messages:% message(s)}"
            "{transactions:? and % open transaction(s)}"
        ),
        Effect.KEPT_IN_ORPHANS,
    )
    JOURNAL_NOT_IN_USE = (
        (
            'another journal of queue "{queue}", with {messages:% message(s)}'
            "{transactions:? and % open transaction(s)}, which is not in use"
        ),
        Effect.KEPT_IN_ORPHANS, Effect.NOT_MISSED,
    )  # fmt: skip
    DIRECTORY_WITHOUT_JOURNAL = "a directory that is no queue's journal", Effect.NOT_MISSED


CHECKSUM_KINDS: Final = frozenset(
    {
        DamageKind.FILE_HEADER_CHECKSUM,
        DamageKind.INFO_FILE_CHECKSUM,
        DamageKind.RECORD_CHECKSUM,
        DamageKind.STORE_FILE_CHECKSUM,
        DamageKind.CLOSE_RECORD_CHECKSUM,
    }
)
"""Those that are a checksum which does not match."""
