"""`qstore-passwd`: add and remove users in the file for `qpidd --user-file`.

Exit codes: 0 success, 2 the file, the user name or the command line is unusable.
"""

from __future__ import annotations

import sys

import click

from qstore import __version__
from qstore.broker.security.users import MAX_NAME, UserFileError, Users
from qstore.tools.entry import PathName, fail, run

_PROGRAM = "qstore-passwd"

_EPILOG = """
\b
Examples:
qstore-passwd /etc/qpidd.users guest                     asks for the password twice
qstore-passwd --stdin /etc/qpidd.users guest < secret    reads the password from the first line of standard input
qstore-passwd --delete /etc/qpidd.users guest            removes the user

\b
The file contains no passwords, only keys derived from them (scrypt), and is readable only by its owner.
A running broker uses the changed file at once.
Exit codes: 0 success, 2 the file, the user name or the command line is unusable.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=PathName(readable=False))
@click.argument("user")
@click.option("--delete", is_flag=True, help="Remove the user.")
@click.option(
    "--stdin", "from_input", is_flag=True, help="Read the password from standard input instead of asking for it."
)
@click.version_option(__version__, prog_name=_PROGRAM)
def command(*, file: str, user: str, delete: bool, from_input: bool) -> None:
    """Add USER to FILE, or change the user's password."""
    users = Users(file)
    try:
        if delete:
            users.remove(user)
            click.echo(f"{user}: removed")
            return
        is_new = users.put(user, _password(from_input=from_input))
    except UserFileError as error:
        fail(_PROGRAM, str(error))
    click.echo(f"{user}: {'added' if is_new else 'password changed'}")


def _password(*, from_input: bool) -> str:
    if from_input:
        if sys.stdin is None:
            fail(_PROGRAM, "standard input is closed")
        line = sys.stdin.buffer.readline(2 * MAX_NAME)
        return line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")
    if sys.stdin is None or not sys.stdin.isatty():
        fail(_PROGRAM, "no terminal to ask for the password; pass it on standard input with --stdin")
    password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return password


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
