"""Damage in a store, as every reader and every tool reports it: the kinds, their effects, and the losses.

The fields of a `Damage` state where it is, its kind (`DamageKind`), its effect on reading (`Effect`), and the values
that describe it. Code decides by these fields: whether a damage costs anything is `Effect.loses`. The kinds and the
effects are two tables with texts for people, from which `what` and `consequence` are built. Each kind lists the effects
it can have. The first is the default; where there are several, the code that detects the damage names the one that
applies.

The names of kinds are stable: tools show `label`, the name in kebab case, and other programs may rely on it. BROKEN:
the data was read and violates its format. UNREADABLE: the operating system refused to read it.

Names in braces are details that the code which detects the damage supplies. They are formatted as by `str.format`, with
two additions:

    {messages:% message(s)}   the text after the colon, with the value in place of the per cent sign, and (s) as the
                              plural; `%,` formats the number with thousands separators
    {key:? (key %)}           likewise, and nothing at all if the value is None
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from string import Formatter
from typing import Final, TypeAlias

Detail: TypeAlias = str | int | None
"""The value of a detail in a damage's text."""


class _Words(Formatter):
    def format_field(self, value: Detail, format_spec: str) -> str:
        if "%" not in format_spec:
            return format(value, format_spec)
        if format_spec.startswith("?") and value is None:
            return ""
        text = format_spec.removeprefix("?").replace("(s)", "" if value == 1 else "s")
        return text.replace("%,", f"{value:,}") if "%," in text else text.replace("%", str(value))


WORDS: Final = _Words()
"""Fills details into a template."""


def names_in(template: str) -> frozenset[str]:
    """The details that a template names."""
    return frozenset(name for _, name, _, _ in WORDS.parse(template) if name)


class Loss(Enum):
    """The loss that a damage causes."""

    NOTHING = auto()
    """Everything in the damaged part is known from elsewhere."""
    CERTAINTY = auto()
    """Nothing is known to be missing, but stale or foreign data may have been read."""
    RECORDS = auto()
    """Records: messages, or the dequeues that consumed them."""
    JOURNAL = auto()
    """Everything that a journal holds, or may have held."""
    TRANSACTIONS = auto()
    """Prepared transactions, or their outcome."""
    TOPOLOGY = auto()
    """Queues, exchanges, bindings, other objects, or their arguments."""


class Effect(Enum):
    """The effect of a damage on reading: the part that is used, skipped or lost.

    Attributes:
        loses: the loss.
        template: the text, with the names of details in braces.
        names: the details that the text names.
    """

    def __init__(self, loses: Loss, template: str) -> None:
        self.loses = loses
        self.template = template
        self.names = names_in(template)

    def __new__(cls, _loses: Loss, _template: str) -> Effect:
        """Create a member with a number as its value, since two effects may have the same text."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__) + 1
        return member

    def words(self, **details: Detail) -> str:
        """The text with its details filled in; details that it does not name are ignored."""
        return WORDS.vformat(self.template, (), details)

    # ---- nothing is lost ----

    NOTHING_READ = Loss.NOTHING, "no data loss: this part is not used"
    RESET_BY_QPIDD = Loss.NOTHING, "no data loss: qpidd resets the file"
    RECORDS_READ = Loss.NOTHING, "no data loss: its records are read"
    CHAIN_LEADS_THERE = Loss.NOTHING, "no data loss: the preceding records lead to the right offset"
    HELD_NO_MESSAGE = Loss.NOTHING, "no data loss: it held no message"
    SALT_FOUND = Loss.NOTHING, "no data loss: the salt is computed from the checksums of the records"
    COPY_TAKEN = Loss.NOTHING, "no data loss: its second copy is used instead"
    COPY_REWRITTEN = Loss.NOTHING, "no data loss: the catalogue is sound; the next start rewrites the copy"
    COPY_USELESS = Loss.NOTHING, "it cannot replace what is missing in the catalogue"
    READ_FROM_LOG = Loss.NOTHING, "no data loss: its content is read from the log"
    READING_BEGINS_THERE = Loss.NOTHING, "reading begins there"
    NEVER_WRITTEN = Loss.NOTHING, "no data loss: no journal has written to the file since taking it from the pool"
    READ_IN_PLACE = Loss.NOTHING, "the file is read at its position in the journal"
    READ_SINCE_NEEDED = (
        Loss.NOTHING,
        "the file is read at its position in the journal, because messages in it or before it are outstanding",
    )
    READ_BY_NUMBER = (
        Loss.NOTHING, "there is no such queue; the file is read at the position that its number gives"
    )  # fmt: skip
    READ_BETWEEN_OTHERS = Loss.NOTHING, "the file is read at the position that the other files imply"
    FILE_NAMES_TAKEN = Loss.NOTHING, "the actual file names are used"
    FILE_SIZES_TAKEN = Loss.NOTHING, "the actual number and size of the files are used"
    RECORDS_SERIAL_TAKEN = Loss.NOTHING, "the records' serial is used"
    FILES_TRUSTED = Loss.NOTHING, "the files are trusted"
    DIRECTORY_TRUSTED = Loss.NOTHING, "the directory is trusted"
    NAME_TRUSTED = Loss.NOTHING, "the file name is trusted"
    NAME_TRUSTED_ONLY = Loss.NOTHING, "the file name is trusted, and the header is ignored"
    HEADER_TRUSTED = Loss.NOTHING, "the header is trusted, because the records match it"
    HEADER_NOT_TRUSTED = Loss.NOTHING, "the header is not trusted"
    NOT_CLOSED_CLEANLY = Loss.NOTHING, "the store counts as not closed cleanly"
    RIDS_GO_ON = Loss.NOTHING, "new record ids continue above the highest in use"
    NOT_MISSED = Loss.NOTHING, "no data loss: nothing in it is needed"

    # ---- nothing is known to be missing ----

    PLACED_BY_NUMBER = Loss.CERTAINTY, "the file's position is derived from its number"
    PLACED_BY_RECORDS = Loss.CERTAINTY, "the file's position is derived from its records"
    PLACED_BY_RIDS = Loss.CERTAINTY, "the file is read as number {number}, derived from its record ids"
    FIRST_SEARCHED = Loss.CERTAINTY, "the first record is searched for"
    FOUND_BY_HEADERS = Loss.CERTAINTY, "the journal's files are found by the queue name in their headers"
    FLAGS_IGNORED = Loss.CERTAINTY, "the flags are ignored"
    NO_JOURNAL_TAKES_IT = Loss.CERTAINTY, "no journal can take the file"
    EXCESS_NOT_READ = Loss.CERTAINTY, "the excess is not read"
    FIRST_KEPT = Loss.CERTAINTY, "the first of the two is kept"
    FIRST_OF_EACH_KEPT = Loss.CERTAINTY, "the first of each is kept"
    REMOVES_NOTHING = (
        Loss.CERTAINTY, "nothing is removed; if the intended message still exists, it is delivered again"
    )  # fmt: skip
    CHANGES_NOTHING = (
        Loss.CERTAINTY, "nothing is changed; if the intended transaction exists, it stays open"
    )  # fmt: skip
    THEY_CHANGE_NOTHING = Loss.CERTAINTY, "nothing is changed"
    DELIVERED_AS_IT_IS = Loss.CERTAINTY, "the message is delivered unchanged: a consumer may fail on it"
    SHOWN_AS_BODY = Loss.CERTAINTY, "its raw data are shown as the body"
    OF_EARLIER_LAP = (
        Loss.CERTAINTY,
        (
            "the file is from an earlier lap; its records are read nevertheless, and messages that were consumed long "
            "ago may reappear"
        ),
    )
    OF_EARLIER_LAP_OR_ELSEWHERE = (
        Loss.CERTAINTY,
        (
            "the file is from an earlier lap or from another journal; its records are read nevertheless, and messages "
            "that were consumed long ago may reappear"
        ),
    )
    OF_ANOTHER_TIME = Loss.CERTAINTY, "one of the two dates from another time: messages may be missing or reappear"
    CONSUMED_MAY_COME_BACK = Loss.CERTAINTY, "messages that were consumed may reappear"
    NOT_COMPARED = Loss.CERTAINTY, "losses in journals since the last clean close may go undetected"
    NOT_BOUNDED = Loss.CERTAINTY, "losses of what was written since the last start may go undetected"
    COPY_TAKEN_UNCERTAIN = (
        Loss.CERTAINTY,
        "its second copy is used instead, which may lack the last change of queues, exchanges and bindings",
    )
    NEW_RIDS_GO_ON = (
        Loss.CERTAINTY,
        (
            "new record ids continue above the highest in use; the last changes of queues, exchanges and bindings may "
            "be lost too"
        ),
    )
    PLEASE_REPORT = Loss.CERTAINTY, "one of the two passes is wrong: please report it, with the journal"

    # ---- records are lost, or may be ----

    RECORDS_IN_IT_LOST = Loss.RECORDS, "records in it are lost"
    RECORDS_IN_THEM_LOST = Loss.RECORDS, "records in them are lost"
    RECORDS_BEHIND_LOST_TOO = Loss.RECORDS, "records in it and in the files after it are lost"
    RECORDS_IF_ANY_LOST = Loss.RECORDS, "any records in it are lost"
    RECORDS_THERE_LOST = Loss.RECORDS, "records at its end are lost"
    RECORDS_BEYOND_END_LOST = Loss.RECORDS, "records beyond its end are lost"
    PLACE_UNKNOWN = Loss.RECORDS, "the file's position is unknown; records in it are lost"
    SALT_LOST = (
        Loss.RECORDS,
        "the salt is lost too: records that begin in the file cannot be verified and are not read",
    )
    SALT_NOT_TRUSTED = Loss.RECORDS, "the file name is trusted, and the header is ignored"
    NUMBER_TAKEN = (
        Loss.RECORDS, "the file is not read, because file {recorded} exists; the content of file {number} is lost"
    )  # fmt: skip
    BELONGS_ELSEWHERE = Loss.RECORDS, "its records belong to another journal and are not read"
    NOT_READ = Loss.RECORDS, "it is not read"
    NOT_READ_OTHER_FILE = Loss.RECORDS, "it is not read; the file's own records are lost"
    NOT_READ_OTHER_LAP = Loss.RECORDS, "they are not read; the file's own records are lost"
    BLOCK_SKIPPED = (
        Loss.RECORDS,
        "1 block, up to 0x{end:x}{end_file:? of file %}, is skipped; reading continues after it",
    )
    BLOCKS_SKIPPED = (
        Loss.RECORDS,
        "{blocks:%, block(s)}, up to 0x{end:x}{end_file:? of file %}, are skipped; reading continues after them",
    )
    SKIPPED_UNLISTED = Loss.RECORDS, "the broken places are skipped, and no more of them are listed"
    TAKEN_FOR_ZEROS = Loss.RECORDS, "they are read as zeros"
    REST_OF_JOURNAL_LOST = Loss.RECORDS, "the rest of the journal is lost"
    LATER_FLUSHES_LOST = Loss.RECORDS, "the records of the later flushes are lost"
    WRITTEN_SINCE_LOST = (
        Loss.RECORDS, "records written after that flush are lost; messages consumed since then may reappear"
    )  # fmt: skip
    SYNCED_END_LOST = Loss.RECORDS, "records at its end are lost; messages that were consumed may reappear"
    WRITTEN_TO_LATER_LOST = Loss.RECORDS, "records written to the later incarnation are lost"
    MESSAGES_COUNTED_LOST = Loss.RECORDS, "{lost:% message(s)} lost"
    IGNORED_AS_TRANSIENT = Loss.RECORDS, "the record is ignored, as recovery does"
    MESSAGE_LEFT_OUT = Loss.RECORDS, "the message is omitted"
    NOT_DELIVERED = Loss.RECORDS, "the message is not delivered"

    # ---- all of a journal is lost, or may be ----

    HELD_LOST = Loss.JOURNAL, "its content is lost"
    MESSAGES_LOST = Loss.JOURNAL, "its messages are lost"
    JOURNAL_NOT_READ = Loss.JOURNAL, "the journal in it is not read{advice}"
    JOURNALS_NOT_READ = Loss.JOURNAL, "the journals in it are not read{advice}"
    POOL_FILES_NOT_FOUND = Loss.JOURNAL, "the journal files in it are not found"
    ORPHAN_LEFT_OUT = Loss.JOURNAL, "the messages are omitted; pass the directory itself to see them"
    ORPHAN_KEPT_ASIDE = (
        Loss.JOURNAL,
        (
            "the messages are omitted; pass the directory itself to see them; qstore-recover --orphans recover "
            "creates a queue from them"
        ),
    )
    ORPHAN_NOT_KNOWN = (
        Loss.JOURNAL,
        (
            "the messages are omitted; pass the directory itself to see them; qstore-recover --orphans recover "
            "creates a queue from them, as the next start does"
        ),
    )
    KEPT_ASIDE = Loss.JOURNAL, "it is kept, but not used"
    KEPT_IN_ORPHANS = Loss.JOURNAL, 'it is moved to the directory "orphans"'
    RECOVER_AGAIN = (
        Loss.JOURNAL,
        (
            "it is unknown what is missing: run qstore-recover again with the same source and destination, which "
            "removes this store and starts over"
        ),
    )

    # ---- transactions are lost ----

    COUNT_AS_UNPREPARED = (
        Loss.TRANSACTIONS,
        (
            "prepared transactions are treated as never prepared: their enqueues are omitted, and the messages that "
            "they dequeued are kept"
        ),
    )
    IN_DOUBT_DROPPED = Loss.TRANSACTIONS, "transactions in doubt are dropped"

    # ---- topology is lost, or may be ----

    TOPOLOGY_LOST = Loss.TOPOLOGY, "exchanges and bindings are lost; the queues are restored from the journals"
    QUEUES_FROM_JOURNALS = Loss.TOPOLOGY, "the queues are taken from the catalogue and from the journals"
    QUEUE_LOST = Loss.TOPOLOGY, "the queue and its bindings are lost from the catalogue"
    MADE_AGAIN = (
        Loss.TOPOLOGY,
        (
            "the queue is recreated from its journal; its bindings, and any exchange that was lost with it, are "
            "unknown and must be declared again"
        ),
    )
    READABLE_READ = Loss.TOPOLOGY, "only its readable part is read"
    READABLE_CONVERTED = Loss.TOPOLOGY, "only the readable part is converted"
    REST_READ = Loss.TOPOLOGY, "the rest is read"
    OBJECT_LEFT_OUT = Loss.TOPOLOGY, "it is omitted"
    BOTH_KEPT = Loss.TOPOLOGY, 'both are kept; this one is shown as "{shown}"'
    MESSAGES_GO_TO = Loss.TOPOLOGY, 'its messages go to "{renamed}"'
    MESSAGES_GO_UNBOUND = Loss.TOPOLOGY, 'its messages go to "{renamed}", and its bindings are omitted'
    ARGUMENTS_LOST = Loss.TOPOLOGY, "the queue's arguments are lost"
    INFO_FROM_FILES = Loss.TOPOLOGY, "name and geometry are taken from the journal's files"


class DamageKind(Enum):
    """A defect of a file, a record or an object.

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
        Effect.FILES_TRUSTED,
    )
    INFO_FILE_QUEUE_NAME = (
        'info file states queue "{recorded}", but the directory belongs to "{queue}"', Effect.DIRECTORY_TRUSTED
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
        Effect.HEADER_TRUSTED, Effect.NAME_TRUSTED_ONLY, Effect.SALT_NOT_TRUSTED, Effect.NUMBER_TAKEN,
    )  # fmt: skip
    FILE_NUMBERS_DIFFER = (
        "file header states file number {recorded}, but the file name and the logical number state {number}",
        Effect.NAME_TRUSTED,
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
        Effect.HEADER_NOT_TRUSTED,
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


@dataclass(frozen=True, slots=True, init=False)
class Damage:
    """Something wrong in a store that a crash alone does not explain.

    Attributes:
        file: path of the file.
        offset: bytes from its start; None if the whole file is meant.
        rid: record id, if known.
        kind: its kind.
        effect: its effect on reading.
        details: name -> value of the details that the texts of kind and effect name.
    """

    file: str
    offset: int | None
    rid: int | None
    kind: DamageKind
    effect: Effect
    details: tuple[tuple[str, Detail], ...]

    def __init__(
        self,
        file: str,
        offset: int | None,
        rid: int | None,
        kind: DamageKind,
        effect: Effect | None = None,
        /,
        **details: Detail,
    ) -> None:
        """Describe a damage.

        Args:
            file: path of the file.
            offset: bytes from its start; None if the whole file is meant.
            rid: record id, if known.
            kind: its kind.
            effect: one of the kind's effects; the first by default.
            details: the values that the texts of the kind and its effect name.
        """
        effect = effect or kind.effects[0]
        assert effect in kind.effects
        assert kind.names | effect.names <= details.keys() <= kind.all_names
        self._set(file, offset, rid, kind, effect, tuple(details.items()))

    def _set(self, *values: object) -> None:
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def what(self) -> str:
        """The damage, as text for people."""
        return self.kind.words(**dict(self.details))

    @property
    def where(self) -> str:
        """The file, and the offset in it if there is one, as text for people."""
        return self.file if self.offset is None else f"{self.file} at 0x{self.offset:x}"

    @property
    def consequence(self) -> str:
        """The effect on reading, as text for people."""
        return self.effect.words(**dict(self.details))

    @property
    def loses(self) -> Loss:
        """The loss it causes."""
        return self.effect.loses

    @property
    def costs(self) -> bool:
        """Whether anything is lost: whether the damaged data is not known from elsewhere."""
        return self.loses is not Loss.NOTHING

    def with_effect(self, effect: Effect, **details: Detail) -> Damage:
        """The same damage with another effect; `details` are the values that the new effect's text names."""
        return Damage(self.file, self.offset, self.rid, self.kind, effect, **dict(self.details), **details)
