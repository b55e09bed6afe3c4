"""`qstore-passwd`: adds users to the file that `qpidd --user-file` reads, and removes them.

Exit codes: 0 fine, 2 the file, the name or the command line cannot be used.
"""

from __future__ import annotations

import sys

import click

from broker.security.users import MAX_NAME, UserFileError, Users
from tools.entry import PathName, distribution_version, fail, run

_PROGRAM = "qstore-passwd"

_EPILOG = """
\b
Examples:
qstore-passwd /etc/qpidd.users guest                     asks for the password, twice
qstore-passwd --stdin /etc/qpidd.users guest < secret    takes the first line of the input
qstore-passwd --delete /etc/qpidd.users guest

\b
The file holds no passwords, only keys that are made of them (scrypt), and only its owner can read it.
A running broker knows of the change at once. Exit codes: 0 fine, 2 unusable input.
"""


@click.command(_PROGRAM, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=PathName(readable=False))
@click.argument("user")
@click.option("--delete", is_flag=True, help="Remove the user.")
@click.option("--stdin", "from_input", is_flag=True, help="Take the password from standard input, and ask nothing.")
@click.version_option(distribution_version(), prog_name=_PROGRAM)
def command(*, file: str, user: str, delete: bool, from_input: bool) -> None:
    """Add USER to FILE, or give the user another password."""
    users = Users(file)
    try:
        if delete:
            users.remove(user)
            click.echo(f"{user}: removed")
            return
        is_new = users.put(user, _password(from_input=from_input))
    except UserFileError as error:
        fail(_PROGRAM, str(error))
    click.echo(f"{user}: {'added' if is_new else 'has a new password'}")


def _password(*, from_input: bool) -> str:
    if from_input:
        if sys.stdin is None:
            fail(_PROGRAM, "standard input is closed")
        line = sys.stdin.buffer.readline(2 * MAX_NAME)
        return line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")
    if sys.stdin is None or not sys.stdin.isatty():
        fail(_PROGRAM, "no terminal to ask for the password at; give it on standard input with --stdin")
    password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    return password


def main() -> None:
    """The console script."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
