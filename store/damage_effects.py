"""The effect of each kind of damage on reading, and what is lost by it: a table, with its texts.

Code that depends on whether a damage costs anything uses `Effect.loses`; the texts are for people only. Names in braces
are details that the code which detects the damage supplies. They are formatted as by `str.format`, with two additions:

    {messages:% message(s)}   the text after the colon, with the value in place of the per cent sign, and (s) as the
                              plural; `%,` formats the number with thousands separators
    {key:? (key %)}           likewise, and nothing at all if the value is None
"""

from __future__ import annotations

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
    """What is lost through a damage."""

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
    """What reading makes of a damage: which part is used, skipped or lost.

    Attributes:
        loses: what is lost.
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
    FILES_BELIEVED = Loss.NOTHING, "the files are trusted"
    DIRECTORY_BELIEVED = Loss.NOTHING, "the directory is trusted"
    NAME_BELIEVED = Loss.NOTHING, "the file name is trusted"
    NAME_BELIEVED_ONLY = Loss.NOTHING, "the file name is trusted, and the header is ignored"
    HEADER_BELIEVED = Loss.NOTHING, "the header is trusted, because the records match it"
    HEADER_NOT_BELIEVED = Loss.NOTHING, "the header is not trusted"
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
    SALT_NOT_BELIEVED = Loss.RECORDS, "the file name is trusted, and the header is ignored"
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
