"""What reading makes of each damage that a store can have, and what is lost by it: a table, with its words.

Whatever depends on whether a damage costs anything asks `Effect.loses`; the words are for people alone. In braces stand
details that the finder of a damage gives, formatted as `str.format` does, and in two ways more:

    {messages:% message(s)}   the text behind the colon, with the value for the per cent sign, and (s) for several;
                              with `%,` for the per cent sign the number has commas
    {key:? (key %)}           likewise, and nothing at all where the value is None
"""

from __future__ import annotations

from enum import Enum, auto
from string import Formatter
from typing import Final, TypeAlias

Detail: TypeAlias = str | int | None
"""A value that a damage's words name."""


class _Words(Formatter):
    def format_field(self, value: Detail, format_spec: str) -> str:
        if "%" not in format_spec:
            return format(value, format_spec)
        if format_spec.startswith("?") and value is None:
            return ""
        text = format_spec.removeprefix("?").replace("(s)", "" if value == 1 else "s")
        return text.replace("%,", f"{value:,}") if "%," in text else text.replace("%", str(value))


WORDS: Final = _Words()
"""Makes words of a template and its details."""


def names_in(template: str) -> frozenset[str]:
    """The details that a template names."""
    return frozenset(name for _, name, _, _ in WORDS.parse(template) if name)


class Loss(Enum):
    """What a damage costs."""

    NOTHING = auto()
    """All that the damaged part told is known otherwise."""
    CERTAINTY = auto()
    """Nothing is known to be missing, but what is read may be more than was there, or not what was there."""
    RECORDS = auto()
    """Records, and with them messages, or the news that they were consumed."""
    JOURNAL = auto()
    """All that a journal held, or may have held."""
    TRANSACTIONS = auto()
    """What was prepared, or was to become of it."""
    WIRING = auto()
    """Queues, exchanges, bindings, other objects, or their arguments."""


class Effect(Enum):
    """What reading makes of a damage.

    Attributes:
        loses: what it costs.
        template: the words.
        names: the details that they name.
    """

    def __init__(self, loses: Loss, template: str) -> None:
        self.loses = loses
        self.template = template
        self.names = names_in(template)

    def __new__(cls, _loses: Loss, _template: str) -> Effect:
        """A member with a number for its value: two effects may have the same words."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__) + 1
        return member

    def words(self, **details: Detail) -> str:
        """The words, with the details that they name; others are passed over."""
        return WORDS.vformat(self.template, (), details)

    # ---- nothing is lost ----

    NOTHING_READ = Loss.NOTHING, "none: nothing is read from it"
    RESET_BY_QPIDD = Loss.NOTHING, "none: qpidd resets it"
    RECORDS_READ = Loss.NOTHING, "none: its records are read"
    CHAIN_LEADS_THERE = Loss.NOTHING, "none: the records before it lead to the right place"
    HELD_NO_MESSAGE = Loss.NOTHING, "none: it held no message"
    SALT_FOUND = Loss.NOTHING, "none: the salt follows from the checksums of the records, which are read"
    COPY_TAKEN = Loss.NOTHING, "none: its second copy is taken in its place"
    READ_FROM_LOG = Loss.NOTHING, "all that was in it is read from the log"
    READING_BEGINS_THERE = Loss.NOTHING, "reading begins there"
    NEVER_WRITTEN = Loss.NOTHING, "no journal has written to the file since it was taken: nothing is read from it"
    READ_IN_PLACE = Loss.NOTHING, "it is read in its place"
    READ_SINCE_NEEDED = Loss.NOTHING, "it is read in its place, since messages in it or before it are outstanding"
    READ_BY_NUMBER = (
        Loss.NOTHING, "there is no such queue, and the file is read in the place that its number gives it"
    )  # fmt: skip
    READ_BETWEEN_OTHERS = Loss.NOTHING, "the file is read in the place that the others give it"
    FILE_NAMES_TAKEN = Loss.NOTHING, "the names of the files themselves are taken"
    FILE_SIZES_TAKEN = Loss.NOTHING, "the files' own number and size are taken"
    RECORDS_SERIAL_TAKEN = Loss.NOTHING, "the records' serial is taken"
    FILES_BELIEVED = Loss.NOTHING, "the files are believed"
    DIRECTORY_BELIEVED = Loss.NOTHING, "the directory is believed"
    NAME_BELIEVED = Loss.NOTHING, "the name is believed"
    NAME_BELIEVED_ONLY = Loss.NOTHING, "the name is believed, and the header not used"
    HEADER_BELIEVED = Loss.NOTHING, "the header is believed, since the records go with it"
    HEADER_NOT_BELIEVED = Loss.NOTHING, "the header is not believed"
    NOT_CLOSED_CLEANLY = Loss.NOTHING, "the store counts as not closed cleanly"
    RIDS_GO_ON = Loss.NOTHING, "record ids go on above the highest in use"
    NEW_RIDS_GO_ON = Loss.NOTHING, "new ids go on above the highest in use"
    NOT_MISSED = Loss.NOTHING, "none: nothing in it is missed"

    # ---- nothing is known to be missing ----

    PLACED_BY_NUMBER = Loss.CERTAINTY, "the file's place follows from its number"
    PLACED_BY_RECORDS = Loss.CERTAINTY, "its records tell the file's place"
    PLACED_BY_RIDS = Loss.CERTAINTY, "by its record ids the file is read as number {number}"
    FIRST_SEARCHED = Loss.CERTAINTY, "the first record is searched for"
    FOUND_BY_HEADERS = Loss.CERTAINTY, "the journal's files are found by the names in their headers"
    FLAGS_IGNORED = Loss.CERTAINTY, "the flags are ignored"
    NO_JOURNAL_TAKES_IT = Loss.CERTAINTY, "no journal can take it"
    EXCESS_NOT_READ = Loss.CERTAINTY, "the excess is not read"
    FIRST_KEPT = Loss.CERTAINTY, "the first of the two is kept"
    FIRST_OF_EACH_KEPT = Loss.CERTAINTY, "the first of each is kept"
    REMOVES_NOTHING = (
        Loss.CERTAINTY, "it removes nothing; the message that was meant, if it is there, is delivered again"
    )  # fmt: skip
    CHANGES_NOTHING = (
        Loss.CERTAINTY, "it changes nothing; the transaction that was meant, if it is there, stays open"
    )  # fmt: skip
    THEY_CHANGE_NOTHING = Loss.CERTAINTY, "they change nothing"
    DELIVERED_AS_IT_IS = Loss.CERTAINTY, "it is delivered as it is: a consumer may fail on it"
    SHOWN_AS_BODY = Loss.CERTAINTY, "its data are given as they are, as the body"
    OF_EARLIER_LAP = (
        Loss.CERTAINTY,
        (
            "the file is of an earlier lap; its records are read all the same, and what was consumed long ago may "
            "come back"
        ),
    )
    OF_EARLIER_LAP_OR_ELSEWHERE = (
        Loss.CERTAINTY,
        (
            "the file is of an earlier lap or of another journal; its records are read all the same, and what was "
            "consumed long ago may come back"
        ),
    )
    OF_ANOTHER_TIME = Loss.CERTAINTY, "one of the two is of another time: messages may be missing, or come back"
    CONSUMED_MAY_COME_BACK = Loss.CERTAINTY, "messages that were consumed may come back"
    NOT_COMPARED = Loss.CERTAINTY, "what was lost of journals since the last clean close may not be seen"
    PLEASE_REPORT = Loss.CERTAINTY, "one of the two readings is wrong: please report it, with the journal"

    # ---- records are lost, or may be ----

    RECORDS_IN_IT_LOST = Loss.RECORDS, "records that stood in it are lost"
    RECORDS_IN_THEM_LOST = Loss.RECORDS, "records that stood in them are lost"
    RECORDS_BEHIND_LOST_TOO = Loss.RECORDS, "records that stood in it, and in those after it, are lost"
    RECORDS_IF_ANY_LOST = Loss.RECORDS, "records that stood in it, if there were any, are lost"
    RECORDS_THERE_LOST = Loss.RECORDS, "records that stood there are lost"
    RECORDS_BEYOND_END_LOST = Loss.RECORDS, "records beyond its end are lost"
    PLACE_UNKNOWN = Loss.RECORDS, "nothing tells the file's place; records that stood in it are lost"
    SALT_LOST = (
        Loss.RECORDS,
        "the salt is lost with it: records that begin in the file cannot be verified, and are not read",
    )
    SALT_NOT_BELIEVED = Loss.RECORDS, "the name is believed, and the header not used"
    NUMBER_TAKEN = Loss.RECORDS, "it is not read, since there is a file {told}; what file {number} held is lost"
    BELONGS_ELSEWHERE = Loss.RECORDS, "its records belong elsewhere and are not read"
    NOT_READ = Loss.RECORDS, "it is not read"
    NOT_READ_OTHER_FILE = Loss.RECORDS, "it is not read; what should stand in the file is lost"
    NOT_READ_OTHER_LAP = Loss.RECORDS, "they are not read; what should stand in the file is lost"
    BLOCK_SKIPPED = (
        Loss.RECORDS,
        "1 block, up to 0x{end:x}{end_file:? of file %}, is skipped; the records after it are read",
    )
    BLOCKS_SKIPPED = (
        Loss.RECORDS,
        "{blocks:%, block(s)}, up to 0x{end:x}{end_file:? of file %}, are skipped; the records after them are read",
    )
    SKIPPED_UNLISTED = Loss.RECORDS, "they are skipped, and not listed from here on"
    TAKEN_FOR_ZEROS = Loss.RECORDS, "they are taken for zeros"
    REST_OF_JOURNAL_LOST = Loss.RECORDS, "the rest of the journal is lost"
    LATER_FLUSHES_LOST = Loss.RECORDS, "the records of the flushes after that are lost"
    WRITTEN_SINCE_LOST = (
        Loss.RECORDS, "what was written after that flush is lost; messages that were consumed since may come back"
    )  # fmt: skip
    WRITTEN_TO_LATER_LOST = Loss.RECORDS, "what was written to the later one is lost"
    MESSAGES_COUNTED_LOST = Loss.RECORDS, "{lost:% message(s)} lost"
    IGNORED_AS_TRANSIENT = Loss.RECORDS, "it is ignored, as recovery does"
    MESSAGE_LEFT_OUT = Loss.RECORDS, "the message is left out"

    # ---- all of a journal is lost, or may be ----

    HELD_LOST = Loss.JOURNAL, "what it held is lost"
    MESSAGES_LOST = Loss.JOURNAL, "its messages are lost"
    JOURNAL_NOT_READ = Loss.JOURNAL, "the journal in it is not read{advice}"
    JOURNALS_NOT_READ = Loss.JOURNAL, "the journals in it are not read{advice}"
    POOL_FILES_NOT_FOUND = Loss.JOURNAL, "the journal files in it are not found"
    ORPHAN_LEFT_OUT = Loss.JOURNAL, "they are left out; name the directory itself to see them"
    ORPHAN_KEPT_ASIDE = (
        Loss.JOURNAL,
        (
            "they are left out; name the directory itself to see them; qstore-recover --orphans recover makes a "
            "queue of them"
        ),
    )
    ORPHAN_NOT_KNOWN = (
        Loss.JOURNAL,
        (
            "they are left out; name the directory itself to see them; qstore-recover --orphans recover makes a "
            "queue of them, as the next start does"
        ),
    )
    KEPT_ASIDE = Loss.JOURNAL, "it is kept aside"
    KEPT_IN_ORPHANS = Loss.JOURNAL, "it is kept aside, in orphans"
    RECOVER_AGAIN = (
        Loss.JOURNAL,
        (
            "what is missing in it is not known: run qstore-recover again with the same source and destination, which "
            "removes this and begins anew"
        ),
    )

    # ---- transactions are lost ----

    COUNT_AS_UNPREPARED = (
        Loss.TRANSACTIONS,
        (
            "transactions that were prepared count as never prepared: what they enqueued is left out, what they "
            "dequeued is kept"
        ),
    )
    IN_DOUBT_DROPPED = Loss.TRANSACTIONS, "transactions that were in doubt are dropped"

    # ---- wiring is lost, or may be ----

    WIRING_LOST = Loss.WIRING, "exchanges and bindings are lost; the queues are those of the journals"
    QUEUES_FROM_JOURNALS = Loss.WIRING, "the queues are those of the catalogue and those of the journals"
    QUEUE_LOST = Loss.WIRING, "the catalogue has lost it, and its bindings with it"
    MADE_AGAIN = (
        Loss.WIRING,
        (
            "the queue is made again from its journal; its bindings, and an exchange that was lost with it, cannot "
            "be told and have to be declared again"
        ),
    )
    READABLE_READ = Loss.WIRING, "what can be read of it is read"
    READABLE_CONVERTED = Loss.WIRING, "what can be read is converted"
    REST_READ = Loss.WIRING, "the rest is read"
    OBJECT_LEFT_OUT = Loss.WIRING, "it is left out"
    BOTH_KEPT = Loss.WIRING, 'both are kept; this one is shown as "{shown}"'
    MESSAGES_GO_TO = Loss.WIRING, 'its messages go to "{renamed}"'
    MESSAGES_GO_UNBOUND = Loss.WIRING, 'its messages go to "{renamed}", and its bindings are left out'
    ARGUMENTS_LOST = Loss.WIRING, "the queue's arguments are lost"
    INFO_FROM_FILES = Loss.WIRING, "name and geometry follow from the journal's files"
