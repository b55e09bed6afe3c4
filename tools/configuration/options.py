"""The options of `qpid-config` for new queues and exchanges: one table of the properties that they set.

`attributes` goes the other way: the options that would create a queue or exchange with the arguments that it has.

Source: qpidd's help of qpid-config; the arguments as qpidd's broker names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click

from qstore.broker.client.address import word_value
from qstore.broker.management.console import Data
from qstore.tools.management.amounts import reference, shown

_Function = TypeVar("_Function", bound=Callable[..., Any])

QUEUE, EXCHANGE = "queue", "exchange"


class NewOption(NamedTuple):
    """An option.

    Attributes:
        name: without the hyphens.
        argument: what it sets.
        of: the kinds of objects that have it.
        type: of its value; None for a flag, which sets 1; a list of words for one of them.
        help: for people.
        words: value of the option -> value of the property, where they differ; None for one that sets nothing.
    """

    name: str
    argument: str
    of: tuple[str, ...]
    type: type[int] | type[str] | None
    help: str
    words: Mapping[str, str | None] | None = None

    @property
    def parameter(self) -> str:
        """Its name among a command's values."""
        return self.name.replace("-", "_")


_BOTH: Final = (QUEUE, EXCHANGE)
_LIMIT_POLICIES: Final = {
    "none": None, "reject": "reject", "flow-to-disk": "flow_to_disk", "ring": "ring", "ring-strict": "ring_strict",
    "self-destruct": "self-destruct",
}  # fmt: skip

#: The options, in the order in which attributes are shown.
OPTIONS: Final = (
    NewOption("replicate", "qpid.replicate", _BOTH, str, "Replicate in a HA cluster: none, configuration or all.",
              {"none": "none", "configuration": "configuration", "all": "all"}),
    NewOption("file-size", "qpid.file_size", (QUEUE,), int, "Size of a journal file, in pages of 64 KiB."),
    NewOption("file-count", "qpid.file_count", (QUEUE,), int, "Number of journal files."),
    NewOption("efp-partition-num", "qpid.efp_partition_num", (QUEUE,), int, "Linearstore: number of the partition."),
    NewOption("efp-pool-file-size", "qpid.efp_pool_file_size", (QUEUE,), int, "Linearstore: size of a file, in KiB."),
    NewOption("wcache-page-size", "qpid.wcache-page-size", (QUEUE,), int, "Linearstore: write cache page, in KiB."),
    NewOption("wcache-num-pages", "qpid.wcache-num-pages", (QUEUE,), int, "Linearstore: number of these pages."),
    NewOption("max-queue-size", "qpid.max_size", (QUEUE,), int, "Limit of the queue, in bytes."),
    NewOption("max-queue-count", "qpid.max_count", (QUEUE,), int, "Limit of the queue, in messages."),
    NewOption("limit-policy", "qpid.policy_type", (QUEUE,), str,
              "What happens at the limit: none (the broker's default), reject, flow-to-disk, ring (discard the oldest"
              " message), ring-strict (the same, and reject if that is acquired) or self-destruct.", _LIMIT_POLICIES),
    NewOption("lvq-key", "qpid.last_value_queue_key", (QUEUE,), str,
              "Last value queue: keep the last message of each value of this header."),
    NewOption("generate-queue-events", "qpid.queue_event_generation", (QUEUE,), int,
              "For replication: 1 for events of enqueues, 2 for events of dequeues, too."),
    NewOption("flow-stop-size", "qpid.flow_stop_size", (QUEUE,), int, "Let publishers wait above so many bytes."),
    NewOption("flow-resume-size", "qpid.flow_resume_size", (QUEUE,), int, "Let them go on below so many bytes."),
    NewOption("flow-stop-count", "qpid.flow_stop_count", (QUEUE,), int, "Let publishers wait above so many messages."),
    NewOption("flow-resume-count", "qpid.flow_resume_count", (QUEUE,), int, "Let them go on below so many messages."),
    NewOption("group-header", "qpid.group_header_key", (QUEUE,), str,
              "Message groups: the header that has a message's group."),
    NewOption("shared-groups", "qpid.shared_msg_group", (QUEUE,), None,
              "Message groups: several consumers share the queue, each with groups of its own."),
    NewOption("cluster-durable", "qpid.persist_last_node", (QUEUE,), None,
              "Make the queue durable when only one node of a cluster is left."),
    NewOption("sequence", "qpid.msg_sequence", (EXCHANGE,), None,
              "Number the messages, in the header qpid.msg_sequence."),
    NewOption("ive", "qpid.ive", (EXCHANGE,), None,
              "Initial value exchange: give new bindings the last message."),
)  # fmt: skip

_ORDERS: Final = {"lvq": "qpid.last_value_queue", "lvq-no-browse": "qpid.last_value_queue_no_browse"}


def new_options(function: _Function) -> _Function:
    """Add these options to a command."""
    more = (
        click.option("--durable", is_flag=True, help="The queue or exchange survives a restart."),
        click.option("--alternate-exchange", metavar="NAME",
                     help="Exchange for messages that are rejected, left in a deleted queue, or cannot be routed."),
        click.option("--argument", "arguments", multiple=True, metavar="NAME=VALUE", callback=_read_arguments,
                     help="Set any other argument or property."),
        click.option("--order", type=click.Choice(("fifo", *_ORDERS)), help="Order of the queue."),
        click.option("--start-replica", metavar="URL", help="HA: replicate a queue; not supported."),
    )  # fmt: skip
    for decorate in reversed(more):
        function = decorate(function)
    for option in reversed(OPTIONS):
        function = _click_option(option)(function)
    return function


def _click_option(option: NewOption) -> Callable[[_Function], _Function]:
    flag = f"--{option.name}"
    if option.type is None:
        return click.option(flag, is_flag=True, default=None, help=option.help)
    if option.words is not None:
        return click.option(flag, type=click.Choice(tuple(option.words)), metavar="WORD", help=option.help)
    if option.type is int:
        return click.option(flag, type=click.IntRange(0), metavar="N", help=option.help)
    return click.option(flag, metavar="TEXT", help=option.help)


def _read_arguments(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, equals, word = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE")
        found[name] = word_value(word)
    return found


def properties_of(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of a new object, from a command's values.

    Raises:
        UsageError: an option is not one of this kind of object.
    """
    found: dict[str, Any] = {}
    for option in OPTIONS:
        value = values[option.parameter]
        if value is None or value is False:
            continue
        if kind not in option.of:
            raise click.UsageError(f"--{option.name} is an option of a new {' or '.join(option.of)}, not of {kind}")
        if option.type is None:
            value = 1
        elif option.words is not None:
            value = option.words[value]
        if value is not None:
            found[option.argument] = value
    order = values["order"]
    if order is not None and kind != QUEUE:
        raise click.UsageError(f"--order is an option of a new queue, not of {kind}")
    if order in _ORDERS:
        found[_ORDERS[order]] = 1
    if values["durable"]:
        found["durable"] = True
    if values["alternate_exchange"] is not None:
        found["alternate-exchange"] = values["alternate_exchange"]
    found.update(values["arguments"])
    return found


def attributes(data: Data, kind: str) -> Iterator[str]:
    """The attributes of a queue or exchange, as options where there are some."""
    if data.get("durable"):
        yield "--durable"
    if data.get("autoDelete"):
        yield "auto-del"
    if data.get("exclusive"):
        yield "excl"
    arguments = data.get("arguments")
    arguments = dict(arguments) if isinstance(arguments, dict) else {}
    for option in OPTIONS:
        if option.argument not in arguments or kind not in option.of:
            continue
        value = arguments.pop(option.argument)
        if option.type is not None:
            names = (name for name, word in (option.words or {}).items() if word == value)
            yield f"--{option.name}={next(names, shown(value))}"
        elif value:
            yield f"--{option.name}"
    if name := reference(data.get("altExchange")):
        yield f"--alternate-exchange={shown(name)}"
    for order, name in _ORDERS.items():
        if arguments.pop(name, None):
            yield f"--order={order}"
    for name, value in arguments.items():
        yield f"--argument {shown(name)}={shown(value)}"
