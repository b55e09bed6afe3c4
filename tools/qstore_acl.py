"""`qstore-acl`: checks ACL files, and explains what they decide.

Exit codes: 0 all rules of the file have an effect, the operation is allowed, or all expectations hold; 1 rules have
no effect, it is denied, or an expectation does not hold; 2 the file or the command line is unusable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.model.authorization import Action, ObjectType
from qstore.broker.security.acl.engine import Decision, Engine
from qstore.broker.security.acl.reader import read_file
from qstore.broker.security.acl.rules import AclFileError, Problem, RuleSet, resolve
from qstore.broker.security.acl.tables import EVERY, LOOKUPS, Lookup, Permission, asked_values, lookups_for
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.wording import plural
from qstore.tools.console.command import (
    EXIT_DAMAGE,
    EXIT_UNUSABLE,
    JSON,
    SETTINGS,
    PathName,
    examples,
    fail,
    failing,
    run,
    say,
)
from qstore.tools.console.rows import JsonLines

_PROGRAM: Final = "qstore-acl"
_MAX_EXPECTATIONS: Final = 4 << 20  # bytes
_NOWHERE: Final = "192.0.2.0"  # an address of the documentation block, for names that are not resolved

_EPILOG: Final = """
\b
Examples:
qstore-acl check /etc/qpid/broker.acl
qstore-acl explain broker.acl bob@QPID create queue orders durable=true queuemaxsize=1000000
qstore-acl explain broker.acl bob@QPID publish exchange amq.topic routingkey=stocks.ibm
qstore-acl explain broker.acl bob@QPID publish exchange orders.dead everyroutingkey='#'
qstore-acl explain broker.acl bob@QPID create connection host=10.1.2.3
qstore-acl who broker.acl consume queue orders
qstore-acl test broker.acl expectations
qstore-acl lookups

\b
Exit codes: 0 all rules of the file have an effect, the operation is allowed, or all expectations hold; 1 rules have
no effect, it is denied, or an expectation does not hold; 2 the file or the command line is unusable.
"""


@click.group(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, prog_name=_PROGRAM)
def command() -> None:
    """Check the access rules of a broker (qpidd --acl-file), and explain what they decide.

    The files are those of qpidd, and the two other formats of Apache's Java broker. Host names are resolved, as by the
    broker, unless --offline is given.
    """


_REALM: Final = click.option(
    "--realm", default="QPID", show_default=True, metavar="REALM", help="The broker's realm, for XML files."
)
_OFFLINE: Final = click.option(
    "--offline", is_flag=True, help="Do not resolve host names: rules with one match no address."
)
_FILE: Final = click.argument("file", type=PathName())


class Question(NamedTuple):
    """An operation.

    Attributes:
        action, object_type: what is to be done.
        name: the object's name; empty if it has none.
        values: the values of the lookup; None if it passes a name only.
    """

    action: Action
    object_type: ObjectType
    name: str
    values: dict[str, str] | None

    def ask(self, engine: Engine, user: str) -> Decision:
        """The decision. If no rule is about publishing, all users may publish."""
        if self.action is Action.PUBLISH and not engine.checks_publish:
            return Decision(Permission.ALLOW, None)
        return engine.decide(user, self.action, self.object_type, self.name, self.values)

    def __str__(self) -> str:
        values = (f"{name}={value}" for name, value in (self.values or {}).items())
        return " ".join((self.action.value, self.object_type.value, *([self.name] if self.name else []), *values))

    @property
    def advice(self) -> str:
        """What is to be said if the broker never asks this; empty if it does."""
        lookups = lookups_for(self.action, self.object_type)
        if not lookups:
            return f"the broker never asks about {self.action.value} {self.object_type.value}; see qstore-acl lookups"
        asked = {*(self.values or {}), *(["name"] if self.name else [])} - {EVERY}
        unasked = [each for each in asked if not any(each in lookup.asked for lookup in lookups.values())]
        return f"the broker never asks for {', '.join(sorted(unasked))} here; see qstore-acl lookups" if unasked else ""


# ---- commands ----


@command.command(
    "check",
    context_settings=SETTINGS,
    epilog=examples(
        "qstore-acl check /etc/qpid/broker.acl",
        "qstore-acl check --offline --json broker.acl | jq .line",
    ),
)
@click.argument("files", nargs=-1, required=True, type=PathName(), metavar="FILE...")
@_REALM
@_OFFLINE
@JSON
def check(*, files: Sequence[str], realm: str, offline: bool, as_json: bool) -> None:
    """Check files, and report rules that have no effect."""
    with _output(as_json=as_json) as out:
        codes = [_check(out, file, realm, offline=offline) for file in files]
    sys.exit(max(codes))


def _check(out: JsonLines | None, file: str, realm: str, *, offline: bool) -> int:
    """Check one file. Returns the exit code."""
    try:
        rules = _read(file, realm, offline=offline)
    except AclFileError as error:
        for problem in error.problems:
            if problem.line:
                _show_problem(out, "error", file, problem)
            else:
                say(_PROGRAM, f"{file}: {problem.reason}")
        return EXIT_UNUSABLE
    for problem in rules.warnings:
        _show_problem(out, "warning", file, problem)
    _show_summary(out, file, rules)
    return EXIT_DAMAGE if rules.warnings else 0


@command.command(
    "explain",
    context_settings=SETTINGS,
    short_help="Show whether a user may do something, and why.",
    epilog=examples(
        "qstore-acl explain broker.acl bob@QPID create queue orders durable=true queuemaxsize=1000000",
        "qstore-acl explain broker.acl bob@QPID publish exchange orders.dead everyroutingkey='#'",
        "qstore-acl explain broker.acl bob@QPID create connection host=10.1.2.3",
    ),
)
@_FILE
@click.argument("user")
@click.argument("question", nargs=-1, required=True, metavar="ACTION OBJECT [NAME] [PROPERTY=VALUE]...")
@_REALM
@_OFFLINE
@JSON
def explain(*, file: str, user: str, question: Sequence[str], realm: str, offline: bool, as_json: bool) -> None:
    """Show whether USER may do something, and which rule of FILE decides it.

    Declarations that forward messages, such as a queue with an alternate exchange, need the right to publish with every
    routing key that the messages may have: ask with everyroutingkey=PATTERN, a pattern as of a topic exchange.
    """
    engine, asked = _engine(file, realm, offline=offline), _question(question)
    decision = asked.ask(engine, user)
    with _output(as_json=as_json) as out:
        if out is not None:
            out.show(_described(asked, user, decision))
        else:
            click.echo(f"{decision.permission.value}: {decision.why}")
            _show_notes(asked, engine)
    sys.exit(0 if decision.allows else EXIT_DAMAGE)


@command.command(
    "who",
    context_settings=SETTINGS,
    short_help="Show the decision for each user.",
    epilog=examples(
        "qstore-acl who broker.acl consume queue orders",
        "qstore-acl who broker.acl publish exchange amq.topic routingkey=stocks.ibm",
    ),
)
@_FILE
@click.argument("question", nargs=-1, required=True, metavar="ACTION OBJECT [NAME] [PROPERTY=VALUE]...")
@_REALM
@_OFFLINE
@JSON
def who(*, file: str, question: Sequence[str], realm: str, offline: bool, as_json: bool) -> None:
    """Show the decision for each user that FILE names, and for all others."""
    engine, asked = _engine(file, realm, offline=offline), _question(question)
    named = {user for rule in engine.rules.rules for user in rule.users or ()}
    named.update(user for users in engine.rules.groups.values() for user in users)
    found = [(user, asked.ask(engine, user)) for user in (*sorted(named), "")]
    width = max(len(user or "all others") for user, _ in found)
    with _output(as_json=as_json) as out:
        for user, decision in found:
            if out is not None:
                out.show(_described(asked, user or None, decision))
            else:
                click.echo(f"{user or 'all others':{width}}  {decision.permission.value:9}  {decision.why}")
        if out is None:
            _show_notes(asked, engine)


@command.command(
    "test",
    context_settings=SETTINGS,
    short_help="Check a file against expected decisions.",
    epilog=examples(
        "qstore-acl test broker.acl expectations",
        'qstore-acl test broker.acl expectations --json | jq -c "select(.holds | not)"',
    ),
)
@_FILE
@click.argument("expectations", type=PathName())
@_REALM
@_OFFLINE
@JSON
def check_expectations(*, file: str, expectations: str, realm: str, offline: bool, as_json: bool) -> None:
    r"""Check that FILE decides as EXPECTATIONS, a file, demands.

    \b
    Each line is PERMISSION USER ACTION OBJECT [NAME] [PROPERTY=VALUE]..., such as
      allow  bob@QPID create queue orders durable=true
      deny   kim@QPID publish exchange amq.topic routingkey=stocks.ibm
    Empty lines, and those that begin with #, are left out. allow and deny hold for allow-log and deny-log, too.
    """
    engine = _engine(file, realm, offline=offline)
    total = failed = 0
    with _output(as_json=as_json) as out:
        for number, permission, user, asked in _expectations(expectations):
            decision = asked.ask(engine, user)
            total += 1
            holds = decision.permission is permission or (not permission.logs and decision.allows is permission.allows)
            failed += not holds
            if out is not None:
                wanted = {"line": number, "expected": permission.value, "holds": holds}
                out.show(_described(asked, user, decision) | wanted)
            elif not holds:
                got = f"{decision.permission.value}: {decision.why}"
                click.echo(f"{expectations}: line {number}: {permission.value} {user} {asked}, but it is {got}")
        if out is None:
            found = plural(total, "expectation")
            click.echo(f"{found}: {failed} do not hold" if failed else f"{found}: all hold")
    sys.exit(EXIT_DAMAGE if failed else 0)


@command.command(
    "lookups",
    context_settings=SETTINGS,
    short_help="List the operations that the broker checks.",
    epilog=examples(
        "qstore-acl lookups",
        'qstore-acl lookups --json | jq -c "select(.object == \\"queue\\")"',
    ),
)
@JSON
def show_lookups(*, as_json: bool) -> None:
    """List the operations that the broker checks, with the properties of their rules."""
    with _output(as_json=as_json) as out:
        for number, each in LOOKUPS.items():
            _show_lookup(out, number, each)


def _show_lookup(out: JsonLines | None, number: int, each: Lookup) -> None:
    asked = sorted(each.asked)
    if out is None:
        click.echo(f"{number:2}  {each.action.value:8} {each.object_type.value:11} {' '.join(asked)}".rstrip())
        click.echo(f"    {each.event}")
        return
    fields = {"event": each.event, "action": each.action.value, "object": each.object_type.value}
    out.show({"kind": "lookup", "number": number, **fields, "properties": asked})


# ---- reading ----


def _read(file: str, realm: str, *, offline: bool) -> RuleSet:
    return read_file(file, realm, (lambda _name: [_NOWHERE]) if offline else resolve)


def _engine(file: str, realm: str, *, offline: bool) -> Engine:
    with failing(_PROGRAM, AclFileError):
        return Engine(_read(file, realm, offline=offline))
    raise AssertionError


def _question(words: Sequence[str]) -> Question:
    try:
        return _parse(words)
    except ValueError as error:
        fail(_PROGRAM, str(error))


def _parse(words: Sequence[str]) -> Question:
    """Parse a question. Raises ValueError."""
    if len(words) < 2:
        raise ValueError(f"{' '.join(words)}: an action and an object are needed, such as create queue")
    try:
        action, object_type = Action(words[0]), ObjectType(words[1])
    except ValueError:
        actions, objects = (" ".join(each.value for each in kind) for kind in (Action, ObjectType))
        raise ValueError(f"{words[0]} {words[1]}: not an action ({actions}) and an object ({objects})") from None
    rest = list(words[2:])
    name = rest.pop(0) if rest and "=" not in rest[0] else ""
    given = {}
    for word in rest:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word}: not PROPERTY=VALUE")
        given[key] = value
    name = given.pop("name", name)
    return Question(action, object_type, name, asked_values(given) or None)


def _expectations(file: str) -> Iterator[tuple[int, Permission, str, Question]]:
    with failing(_PROGRAM):
        data = Path(file).read_bytes()
    if len(data) > _MAX_EXPECTATIONS:
        fail(_PROGRAM, f"{file}: larger than {_MAX_EXPECTATIONS:,} bytes")
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        try:
            permission = Permission(words[0])
            if len(words) < 2:
                raise ValueError("a user is missing")
            yield number, permission, words[1], _parse(words[2:])
        except ValueError as error:
            fail(_PROGRAM, f"{file}: line {number}: {error}")


# ---- output ----


@contextmanager
def _output(*, as_json: bool) -> Iterator[JsonLines | None]:
    """The output for JSON; None for text."""
    out = JsonLines(sys.stdout.buffer) if as_json else None
    with failing(_PROGRAM):
        yield out
        if out is not None:
            out.flush()


def _show_notes(asked: Question, engine: Engine) -> None:
    if asked.advice:
        click.echo(f"note: {asked.advice}")
    if asked.action is Action.PUBLISH and not engine.checks_publish:
        click.echo("note: no rule is about publishing, so the broker does not check messages")


def _show_problem(out: JsonLines | None, kind: str, file: str, problem: Problem) -> None:
    line, reason, text = problem
    if out is not None:
        out.show({"kind": kind, "path": file, "line": line, "reason": reason, "text": text})
    else:
        click.echo(f"{file}: {kind}: {f'line {line}: ' if line else ''}{reason}{f': {text[:100]!a}' if text else ''}")


def _show_summary(out: JsonLines | None, file: str, rules: RuleSet) -> None:
    checks = Engine(rules).checks_publish
    if out is not None:
        out.show(
            {"kind": "acl", "path": file, "version": rules.version, "rules": len(rules.rules),
             "groups": len(rules.groups), "quotas": len(rules.quotas), "default": rules.default.value,
             "checks_publish": checks, "warnings": len(rules.warnings)}
        )  # fmt: skip
        return
    counts = (rules.rules, "rule"), (rules.groups, "group"), (rules.quotas, "quota")
    parts = ", ".join([f"version {rules.version}", *(plural(len(each), name) for each, name in counts)])
    messages = "each message is checked" if checks else "messages are not checked: no rule is about publishing"
    click.echo(f"{file}: {parts}; {messages}")


def _described(asked: Question, user: str | None, decision: Decision) -> dict[str, Any]:
    rule = decision.rule
    return {
        "kind": "decision",
        "user": user,
        "action": asked.action.value,
        "object": asked.object_type.value,
        "name": asked.name,
        "properties": asked.values or {},
        "permission": decision.permission.value,
        "allowed": decision.allows,
        "rule": None if rule is None else rule.number,
        "line": None if rule is None else rule.line,
        "text": None if rule is None else str(rule),
        "exceeded": decision.exceeded or None,
    }


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
