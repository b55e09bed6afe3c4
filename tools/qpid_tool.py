"""`qpid-tool`: a shell on the management agents of a broker, compatible with the Qpid project's command.

Exit codes: 0 fine, 1 a command has failed, 2 invalid command line.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from qstore import __version__
from qstore.broker.management.console import Console
from qstore.tools.console.broker_options import BrokerOptions, broker_options
from qstore.tools.management.running import EXIT_CODES, EXIT_FAILED, main_of, run_on_console
from qstore.tools.shell.commands import Shell
from qstore.tools.shell.prompt import run_lines, run_terminal

PROGRAM: Final = Shell.program

_EPILOG: Final = f"""
\b
Examples:
qpid-tool                                              type help
qpid-tool user/password@host:5672
qpid-tool -e 'list queue msgDepth>1000'                one command
qpid-tool -e 'call broker echo 1 hello'
qpid-tool -e 'call queue:orders purge 0'
qpid-tool -e 'call broker create queue orders {{durable: True}}'
qpid-tool --json -e 'show queue:orders' | jq .msgDepth
qpid-tool -e agents

\b
{EXIT_CODES}
"""


@click.command(PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("address", required=False, metavar="[URL]")
@broker_options
@click.option("-e", "--execute", "lines", multiple=True, metavar="COMMAND", help="Carry out this command, and end.")
@click.option("--agent", metavar="NAME", help="Ask this agent instead of the broker's own.")
@click.option("--json", "is_json", is_flag=True, help="Print a JSON object a line.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Browse the objects of a broker, and call their methods.

    Commands are typed, piped, or given with -e. URL is the broker, as with -b.
    """
    broker = BrokerOptions.take(values)
    is_fine = True

    def work(console: Console) -> None:
        nonlocal is_fine
        shell = Shell(console, is_json=values["is_json"])
        shell.agent = values["agent"]
        if values["lines"]:
            is_fine = run_lines(shell, values["lines"])
        elif sys.stdin.isatty():
            run_terminal(shell)
        else:
            is_fine = run_lines(shell, sys.stdin)

    code = run_on_console(PROGRAM, broker if values["address"] is None else broker.at(values["address"]), work)
    context.exit(code if is_fine else EXIT_FAILED)


main = main_of(PROGRAM, command)

if __name__ == "__main__":
    main()
