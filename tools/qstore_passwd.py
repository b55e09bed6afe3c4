"""`qstore-passwd`: add, remove, list and verify users in the file for `qpidd --user-file`, or import them.

Exit codes: 0 success, 1 the password is wrong or not all users were imported, 2 the file, the user name or the command
line is unusable.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from qstore import __version__
from qstore.broker.security.users.imports import FORMATS, SASLDB, read_import
from qstore.broker.security.users.user_file import MAX_FILE_BYTES, UserFileError, Users
from qstore.broker.security.users.verifiers import CRAM, DEFAULT_MECHANISMS, MAX_NAME, MECHANISMS, Verifiers
from qstore.formats.wording import plural
from qstore.tools.console.command import EXIT_DAMAGE, SETTINGS, PathName, fail, run, say

_PROGRAM = "qstore-passwd"

_EPILOG = """
\b
Examples:
qstore-passwd /etc/qpidd.users guest                     asks for the password twice
qstore-passwd --stdin /etc/qpidd.users guest < secret    reads the password from the first line of standard input
qstore-passwd --delete /etc/qpidd.users guest            removes the user
qstore-passwd --list /etc/qpidd.users                    lists the users, their SASL mechanisms and tags
qstore-passwd --tags administrator /etc/qpidd.users guest    makes an existing user an administrator
qstore-passwd --verify /etc/qpidd.users guest            asks for the password, and checks it
qstore-passwd --import sasldb /var/lib/qpidd/qpidd.sasldb /etc/qpidd.users

\b
The file contains no passwords, only what the SASL mechanisms derive from them, and is readable only by its owner:
PLAIN (scrypt) and SCRAM-SHA-256, or those given with --mechanism. CRAM-MD5, CRAM-MD5-HASHED and
CRAM-MD5-HEX (of Apache's Java and .NET clients) and DIGEST-MD5 are for old clients only:
their values are enough to log in without the password. A user who should use one of them needs
  --mechanism PLAIN --mechanism SCRAM-SHA-256 --mechanism DIGEST-MD5

\b
Formats to import: sasldb (qpidd; needs db5.3_dump), plain and base64md5 (password files of Apache's Java broker).
Users that FILE has already are kept as they are.

\b
A running broker uses the changed file at once.
Exit codes: 0 success, 1 the password is wrong, or some users were not imported, 2 the file, the user name or the
command line is unusable.
"""

_BERKELEY_MAGICS: Final = (0x00061561, 0x00053162)  # hash, btree: at offset 12, in either byte order


@click.command(_PROGRAM, epilog=_EPILOG, context_settings=SETTINGS)
@click.argument("file", type=PathName(readable=False))
@click.argument("user", required=False)
@click.option("--delete", is_flag=True, help="Remove the user.")
@click.option("--list", "is_list", is_flag=True, help="List the users.")
@click.option("--verify", is_flag=True, help="Check the user's password.")
@click.option(
    "--import", "source", type=(click.Choice(FORMATS), PathName(exists=True, dir_okay=False)), metavar="FORMAT SOURCE",
    help="Add the users of another broker's password file.",
)  # fmt: skip
@click.option(
    "--mechanism", "mechanisms", type=click.Choice(MECHANISMS, case_sensitive=False), multiple=True,
    default=DEFAULT_MECHANISMS, show_default=True, help="SASL mechanism that the user can log in with; repeatable.",
)  # fmt: skip
@click.option(
    "--realm", default="QPID", show_default=True, metavar="REALM",
    help="The broker's --realm: for DIGEST-MD5, and of the users to import.",
)  # fmt: skip
@click.option(
    "--tags", metavar="TAG,TAG",
    help="What the user may administer: administrator, policymaker, monitoring, management; empty for nothing. An "
    "existing user keeps the password.",
)  # fmt: skip
@click.option(
    "--stdin", "from_input", is_flag=True, help="Read the password from standard input instead of asking for it."
)
@click.version_option(__version__, prog_name=_PROGRAM)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    file: str,
    user: str | None,
    delete: bool,
    is_list: bool,
    verify: bool,
    source: tuple[str, str] | None,
    mechanisms: tuple[str, ...],
    realm: str,
    tags: str | None,
    from_input: bool,
) -> None:
    """Add USER to FILE, or change the user's password."""
    if sum((delete, is_list, verify, source is not None)) > 1:
        raise click.UsageError("give only one of --delete, --list, --verify and --import")
    if (user is None) != (is_list or source is not None):
        raise click.UsageError("missing USER" if user is None else "--list and --import take no USER")
    users = Users(file)
    try:
        if is_list:
            _list(users)
        elif source is not None:
            context.exit(_import(users, *source, mechanisms, realm))
        elif user is not None and delete:
            users.remove(user)
            click.echo(f"{user}: removed")
        elif user is not None and verify:
            is_right = users.verify(user, _password(from_input=from_input, is_new=False))
            click.echo(f"{user}: {'the password is right' if is_right else 'unknown user or wrong password'}")
            context.exit(0 if is_right else EXIT_DAMAGE)
        elif user is not None and tags is not None and users.exists and (found := users.find(user)) is not None:
            users.put_all({user: _tagged(found, tags)}, keeps_tags=False)
            click.echo(f"{user}: tags changed")
        elif user is not None:
            is_new = users.put(user, _password(from_input=from_input, is_new=True), mechanisms, realm=realm)
            if tags is not None and (made := users.find(user)) is not None:
                users.put_all({user: _tagged(made, tags)}, keeps_tags=False)
            click.echo(f"{user}: {'added' if is_new else 'password changed'}")
    except UserFileError as error:
        fail(_PROGRAM, str(error))


def _tagged(found: Verifiers, tags: str) -> Verifiers:
    try:
        return found.with_tags(each.strip() for each in tags.split(",") if each.strip())
    except ValueError as error:
        fail(_PROGRAM, str(error))


def _list(users: Users) -> None:
    for name in users.names():
        found = users.find(name)
        if found is not None:
            tags = f" [{', '.join(found.tags)}]" if found.tags else ""
            click.echo(f"{name}: {', '.join(found.mechanisms())}{tags}")


def _import(users: Users, kind: str, source: str, mechanisms: tuple[str, ...], realm: str) -> int:
    """Import users. Returns the exit code."""
    try:
        found = read_import(kind, _content(kind, source), realm)
    except ValueError as error:
        fail(_PROGRAM, f"{source}: {error}")
    present = set(users.names()) if Path(users.path).exists() else set[str]()
    problems = list(found.problems)
    new = {}
    for user in found.users:
        if user.name in present:
            problems.append(f"user {user.name} is already in {users.path}, and is kept")
            continue
        try:
            new[user.name] = user.verifiers(realm, mechanisms)
        except ValueError as error:
            problems.append(f"user {user.name}: invalid password: {error}")
    if new:
        users.put_all(new)
    for line in problems:
        say(_PROGRAM, f"{source}: {line}")
    click.echo(f"{plural(len(new), 'user')} imported")
    if any(user.md5 for user in found.users if user.name in new):
        possible = " and ".join(each for each in ("PLAIN", *CRAM) if each == "PLAIN" or each in mechanisms)
        click.echo(
            f"They can log in with {possible} only, until they get a new password: the file has hashes, no passwords."
        )
    return EXIT_DAMAGE if problems else 0


def _content(kind: str, source: str) -> bytes:
    """The content of a file to import; of a Berkeley DB, what db5.3_dump prints."""
    try:
        with Path(source).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        fail(_PROGRAM, f"{source}: cannot be read: {error.strerror}")
    if len(content) > MAX_FILE_BYTES:
        fail(_PROGRAM, f"{source}: larger than {MAX_FILE_BYTES:,} bytes")
    magics = {int.from_bytes(content[12:16], order) for order in ("little", "big")}
    if kind != SASLDB or not magics.intersection(_BERKELEY_MAGICS):
        return content
    program = next(filter(None, map(shutil.which, ("db5.3_dump", "db_dump"))), None)
    if program is None:
        fail(_PROGRAM, f"{source}: a Berkeley DB, which db5.3_dump can print; apt-get install db5.3-util")
    done = subprocess.run([program, "--", str(Path(source).resolve())], capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        fail(_PROGRAM, f"{source}: {done.stderr.decode(errors='replace').strip() or 'db5.3_dump has failed'}")
    return done.stdout


def _password(*, from_input: bool, is_new: bool) -> str:
    if from_input:
        if sys.stdin is None:
            fail(_PROGRAM, "standard input is closed")
        line = sys.stdin.buffer.readline(2 * MAX_NAME)
        return line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="surrogateescape")
    if sys.stdin is None or not sys.stdin.isatty():
        fail(_PROGRAM, "no terminal to ask for the password; pass it on standard input with --stdin")
    password: str = click.prompt("Password", hide_input=True, confirmation_prompt=is_new)
    return password


def main() -> None:
    """Console script entry point."""
    run(_PROGRAM, command)


if __name__ == "__main__":
    main()
