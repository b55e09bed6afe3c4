"""The file of users."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.security import users as users_module
from qstore.broker.security.users import MAX_FILE_BYTES, UserFileError, Users, is_user_name
from qstore.tools.qstore_passwd import command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def users(tmp_path: Path) -> Users:
    return Users(str(tmp_path / "users"))


def lines_of(users: Users) -> list[str]:
    return Path(users.path).read_text().splitlines()


def test_a_password_is_right_or_wrong(users: Users) -> None:
    assert users.put("guest", "secret")
    assert users.verify("guest", "secret")
    assert not users.verify("guest", "Secret")
    assert not users.verify("guest", "")
    assert not users.verify("gues", "secret")
    assert not users.verify("guest:scrypt", "secret")


def test_the_file_has_no_password_and_is_its_owner_s(users: Users) -> None:
    users.put("guest", "secret")
    users.put("other", "secret")
    first, second = lines_of(users)
    assert first.startswith("guest:scrypt$16384$8$1$")
    assert "secret" not in first
    assert first.partition(":")[2] != second.partition(":")[2]
    assert Path(users.path).stat().st_mode & 0o777 == 0o600
    assert users.check() == []


def test_a_new_password_and_a_removal_leave_the_rest(users: Users) -> None:
    Path(users.path).write_text("# people\n")
    for name in ("a", "b", "c"):
        users.put(name, name)
    assert not users.put("b", "new")
    users.remove("a")
    assert [line.partition(":")[0] for line in lines_of(users)] == ["# people", "b", "c"]
    assert (users.verify("b", "new"), users.verify("b", "b"), users.verify("a", "a")) == (True, False, False)


def test_a_change_is_seen_by_who_has_the_file_open(users: Users) -> None:
    users.put("a", "1")
    other = Users(users.path)
    assert other.verify("a", "1")
    users.put("a", "2")
    assert other.verify("a", "2")


@pytest.mark.parametrize(
    "line",
    [
        "guest",
        "guest:",
        "guest:secret",
        "guest:md5$1$2$3$YWFh$YWFh",
        "guest:scrypt$16384$8$1$AAAA$AAAA",  # too short a key
        "guest:scrypt$16383$8$1$AAAA$" + "AAAA" * 8,  # no power of two
        "guest:scrypt$1073741824$8$1$AAAA$" + "AAAA" * 8,  # gigabytes of memory
        "guest:scrypt$16384$99$1$AAAA$" + "AAAA" * 8,
        "guest:scrypt$16384$8$99$AAAA$" + "AAAA" * 8,
        "guest:scrypt$16384$8$1$!!!!$" + "AAAA" * 8,
        "guest:scrypt$a$b$c$AAAA$" + "AAAA" * 8,
        "gu est:scrypt$16384$8$1$AAAA$" + "AAAA" * 8,
    ],
)
def test_a_line_that_is_none(users: Users, line: str) -> None:
    Path(users.path).write_text(f"\n{line}\n")
    with pytest.raises(UserFileError, match="line 2"):
        users.check()
    if line.startswith("guest:"):
        with pytest.raises(UserFileError, match="line 2"):
            users.verify("guest", "secret")


def test_files_that_are_none(users: Users) -> None:
    with pytest.raises(UserFileError, match="cannot be read: No such file"):
        users.check()
    Path(users.path).write_bytes(b"\xff\xfe")
    with pytest.raises(UserFileError, match="invalid UTF-8 at byte 0"):
        users.check()
    with Path(users.path).open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(UserFileError, match="larger than"):
        users.check()


def test_a_user_twice(users: Users) -> None:
    users.put("guest", "secret")
    Path(users.path).write_text("\n".join(lines_of(users) * 2))
    with pytest.raises(UserFileError, match="duplicate user"):
        users.check()


def test_others_can_read_it(users: Users) -> None:
    users.put("guest", "secret")
    os.chmod(users.path, 0o644)
    (line,) = users.check()
    assert "chmod 600" in line


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a@b", "#a", "a\nb", "a\0b", "x" * 256, "\udcff"])
def test_names_that_no_user_has(users: Users, name: str) -> None:
    with pytest.raises(UserFileError, match="invalid user name"):
        users.put(name, "secret")


@pytest.mark.parametrize("password", ["", "x" * 256, "a\0b", "\udcff"])
def test_passwords_that_nobody_has(users: Users, password: str) -> None:
    with pytest.raises(UserFileError, match="invalid password"):
        users.put("guest", password)


@given(st.binary(max_size=200))
def test_whatever_is_in_the_file(content: bytes) -> None:
    users = Users("users")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users_module.Users, "_read", lambda self: content.decode(errors="replace"))
        # Where the lines are right there is still no such file whose mode could be seen.
        with contextlib.suppress(UserFileError):
            users.check()


@given(st.text())
def test_names_fit_into_the_file(name: str) -> None:
    if is_user_name(name):
        assert len(f"{name}:".splitlines()) == 1
        assert f"{name}:scrypt".partition(":")[0] == name


# ---- qstore-passwd ----


def passwd(*arguments: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(command, arguments, input=given)


def test_the_command_adds_and_removes(users: Users) -> None:
    assert passwd("--stdin", users.path, "guest", given="one\n").stdout == "guest: added\n"
    assert users.verify("guest", "one")
    assert passwd("--stdin", users.path, "guest", given="two\r\n").stdout == "guest: password changed\n"
    assert users.verify("guest", "two")
    assert passwd("--delete", users.path, "guest").stdout == "guest: removed\n"
    assert lines_of(users) == []


def test_the_command_asks_twice_at_a_terminal(users: Users) -> None:
    leader, follower = pty.openpty()
    words = ["setsid", "--ctty", "--wait", sys.executable, "-m", "qstore.tools.qstore_passwd", users.path, "guest"]
    with subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower, cwd=ROOT) as process:
        os.close(follower)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while more := os.read(leader, 1024):
                shown += more
                if more.endswith(b": "):  # only now is nothing shown of what is typed
                    os.write(leader, b"secret\n")
        os.close(leader)
    assert process.returncode == 0, shown
    assert shown.count(b"assword") == 2 or b"Repeat" in shown, shown
    assert b"secret" not in shown
    assert users.verify("guest", "secret")


def test_the_command_refuses_in_one_line(users: Users) -> None:
    for arguments, given_text in (
        (("--delete", users.path, "guest"), b""),
        (("--stdin", users.path, "a b"), b"x\n"),
        (("--stdin", users.path, "guest"), b""),
        (("--stdin", users.path, "guest"), b"\xff\n"),
        (("--stdin", "/nowhere/users", "guest"), b"x\n"),
    ):
        result = passwd(*arguments, given=given_text)
        assert result.exit_code == 2
        assert result.stderr.startswith("qstore-passwd: ")
        assert result.stderr.count("\n") == 1
