"""Methods that change the broker's log, until it ends.

    setLogLevel    rules separated by blanks or commas: `LEVEL[+-][:PATTERN]` shows lines, with `!` before it hides
                   them. They replace the rules in force
    getLogLevel    the rules in force, separated by commas, those that hide lines last
    setStatus      switches the operational log, of the class log

Source: Qpid C++ Broker Book, 1.1.8.4.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from qstore.broker.log.logs import LogError, Rules
from qstore.broker.management.methods.arguments import flag, text
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.model.errors import InvalidArgumentError, NotImplementedByBrokerError

if TYPE_CHECKING:
    from qstore.broker.log.logs import LogControl
    from qstore.broker.log.status_log import StatusLog
    from qstore.broker.management.managed_broker import ManagedBroker
    from qstore.broker.management.objects.element import Arguments, Results
    from qstore.broker.model.caller import Caller

_MAX_RULES: Final = 100
_MAX_RULE_CHARACTERS: Final = 200
_split: Final = re.compile(r"[\s,]+").split


async def get_level(managed: ManagedBroker, _broker: object, _arguments: Arguments, _caller: Caller) -> Results:
    """Which lines are shown."""
    rules = _log(managed).rules
    return {"level": ",".join([*rules.enabled, *(f"!{each}" for each in rules.disabled)])}


async def set_level(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Change which lines are shown."""
    _check(managed, caller)
    parts = [each for each in _split(text(arguments, "level")) if each]
    if not parts or len(parts) > _MAX_RULES or max(len(each) for each in parts) > _MAX_RULE_CHARACTERS:
        raise InvalidArgumentError("give the argument level one to 100 rules, such as notice+ or !debug-:Network")
    try:
        rules = Rules(
            [each for each in parts if not each.startswith("!")], [each[1:] for each in parts if each.startswith("!")]
        )
    except LogError as error:
        raise InvalidArgumentError(str(error)) from None
    _log(managed).select(rules)
    return {}


async def get_hires(managed: ManagedBroker, _broker: object, _arguments: Arguments, _caller: Caller) -> Results:
    """Whether the time of a line has microseconds."""
    return {"logHires": _log(managed).has_microseconds}


async def set_hires(managed: ManagedBroker, _broker: object, arguments: Arguments, caller: Caller) -> Results:
    """Change whether the time of a line has microseconds."""
    _check(managed, caller)
    _log(managed).show_microseconds(is_on=flag(arguments, "logHires"))
    return {}


async def set_status(managed: ManagedBroker, status: StatusLog, arguments: Arguments, caller: Caller) -> Results:
    """Switch the operational log on or off."""
    _check(managed, caller)
    if "status" not in arguments:
        raise InvalidArgumentError("give the argument status: true or false")
    status.switch(is_on=flag(arguments, "status"))
    return {}


def _check(managed: ManagedBroker, caller: Caller) -> None:
    managed.broker.authorization.check(caller, Action.UPDATE, ObjectType.BROKER, "")


def _log(managed: ManagedBroker) -> LogControl:
    if managed.log is None:
        raise NotImplementedByBrokerError("the log of this broker cannot be changed")
    return managed.log
