"""`qpid-ctrl`: call one method of an object of a broker, compatible with the Qpid project's command.

Exit codes: 0 fine, 1 failed, 2 invalid command line.
"""

from __future__ import annotations

from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.management.console import Console, Data, NoObjectError, ObjectId
from qstore.tools.console.amounts import plain, shown
from qstore.tools.console.broker import EXIT_CODES, BrokerOptions, broker_options, main_of, run_on_console
from qstore.tools.console.command import JSON, SETTINGS
from qstore.tools.console.rows import print_json
from qstore.tools.qpid_tool import method_arguments

PROGRAM: Final = "qpid-ctrl"

_EPILOG = f"""
\b
Examples:
qpid-ctrl getLogLevel
qpid-ctrl setLogLevel level='debug+:Broker !debug-:broker::Broker::ManagementMethod'
qpid-ctrl echo sequence=1 body=hello
qpid-ctrl --class queue --id orders purge request=0
qpid-ctrl --package org.apache.qpid.acl --class acl reloadACLFile

\b
{EXIT_CODES}
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("method")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE]...")
@broker_options
@click.option("-c", "--class", "of", default="broker", show_default=True, metavar="NAME", help="Class of the object.")
@click.option("-p", "--package", metavar="NAME", help="Package of the class, if several have one of this name.")
@click.option("-i", "--id", "key", metavar="KEY", help="Key of the object.  [default: the first one of the class]")
@click.option("--agent", metavar="NAME", help="Ask this agent instead of the broker's own.")
@JSON
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Call a method of an object, and print what it returns as NAME=VALUE."""
    broker = BrokerOptions.take(values)

    def work(console: Console) -> None:
        name, agent = values["method"], values["agent"]
        found = _object(console, values["of"], values["package"], values["key"], agent)
        schema = console.schema(found.schema_id or found.class_name, agent=agent)
        method = next((each for each in schema.methods if each.name == name), None)
        if method is None:
            known = ", ".join(each.name for each in schema.methods) or "none"
            raise NoObjectError(f"the class {found.class_name} has no method {name}; its methods are: {known}")
        results = console.call(found, name, method_arguments(method, values["words"]), agent=agent)
        if values["as_json"]:
            print_json([{"kind": "result", "method": name, "results": plain(results)}])
        else:
            for key, value in results.items():
                click.echo(f"{shown(key)}={shown(value)}")

    context.exit(run_on_console(PROGRAM, broker, work))


def _object(console: Console, of: str, package: str | None, key: str | None, agent: str | None) -> Data:
    """The object of a class with a key, or the first one. Raises NoObjectError."""
    for each in console.query(of, package=package, agent=agent):
        if key is None or key in (each.key, each.get("name"), (each.object_id or ObjectId("")).name):
            return each
    raise NoObjectError(f"there is no object {of}{'' if key is None else f' {key}'}")


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
