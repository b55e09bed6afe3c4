"""The file of users."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.security.users.imports import FORMATS, read_import
from qstore.broker.security.users.user_file import MAX_FILE_BYTES, MAX_RECALLED, UserFileError, Users
from qstore.broker.security.users.verifiers import MECHANISMS, Verifiers, is_user_name
from qstore.tools.qstore_passwd import command

ROOT = Path(__file__).parents[3]


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


def test_a_password_that_was_right_is_recalled_until_the_user_changes(users: Users) -> None:
    users.put("guest", "secret")
    assert not users.recalls("guest", "secret")
    assert not users.verify("guest", "wrong")
    assert not users.recalls("guest", "wrong")
    assert users.verify("guest", "secret")
    assert users.recalls("guest", "secret")
    for name, password in (("guest", "wrong"), ("other", "secret"), ("guest", ""), ("guest", "secret\0")):
        assert not users.recalls(name, password)
    assert not any(b"secret" in tag for tag in users._recalled)
    users.put("other", "secret")
    assert users.recalls("guest", "secret")
    users.put("guest", "secret")  # the same password, but another verifier
    assert not users.recalls("guest", "secret")
    assert users.verify("guest", "secret")
    users.remove("guest")
    assert not users.recalls("guest", "secret")
    Path(users.path).unlink()
    with pytest.raises(UserFileError):
        users.recalls("guest", "secret")


def test_recalled_passwords_are_bounded(users: Users) -> None:
    users.put("guest", "secret")
    users.verify("guest", "secret")
    for number in range(MAX_RECALLED + 10):
        assert users.recalls("guest", "secret")  # it is used all the time
        users._recall(number.to_bytes(32, "big"))
    assert len(users._recalled) == MAX_RECALLED
    assert users.recalls("guest", "secret")


def test_the_file_has_no_password_and_is_its_owner_s(users: Users) -> None:
    users.put("guest", "secret")
    users.put("other", "secret")
    decoy, first, second = lines_of(users)
    assert decoy.startswith(":decoy$")
    assert first.startswith("guest:scrypt$16384$8$1$")
    assert " SCRAM-SHA-256$65536$" in first
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
    assert [line.partition(":")[0] for line in lines_of(users)] == ["# people", "", "b", "c"]
    assert (users.verify("b", "new"), users.verify("b", "b"), users.verify("a", "a")) == (True, False, False)


def test_changed_password_is_seen_through_an_open_file(users: Users) -> None:
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
        "guest:SCRAM-SHA-256$100$AAAAAAAAAAAAAAAA$" + "$".join(["AAAA" * 10 + "AAA="] * 2),  # too few iterations
        "guest:SCRAM-SHA-256$4096$AAAAAAAAAAAAAAAA$AAAA$AAAA",
        "guest:CRAM-MD5$AAAA",
        "guest:DIGEST-MD5$UVBJRA==$AAAA",
        "guest:CRAM-MD5$" + "AAAA" * 10 + "AAA= CRAM-MD5$" + "AAAA" * 10 + "AAA=",  # twice
    ],
)
def test_a_malformed_line(users: Users, line: str) -> None:
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
def test_invalid_password_is_refused(users: Users, password: str) -> None:
    with pytest.raises(UserFileError, match="invalid password"):
        users.put("guest", password)


@given(st.binary(max_size=200))
def test_arbitrary_file_content_raises_only_user_file_errors(content: bytes) -> None:
    users = Users("users")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Users, "_read", lambda self: content.decode(errors="replace"))
        # Where the lines are right there is still no such file whose mode could be seen.
        with contextlib.suppress(UserFileError):
            users.check()


@given(st.text())
def test_names_fit_into_the_file(name: str) -> None:
    if is_user_name(name):
        assert len(f"{name}:".splitlines()) == 1
        assert f"{name}:scrypt".partition(":")[0] == name


def test_users_log_in_only_with_their_mechanisms(users: Users) -> None:
    users.put("all", "secret", MECHANISMS)
    users.put("old", "secret", ["CRAM-MD5"])
    found = users.find("all")
    assert found is not None
    assert found.mechanisms() == MECHANISMS
    assert users.supports("CRAM-MD5")
    assert not users.supports("PLAIN")
    assert not users.verify("old", "secret")  # there is nothing to check it with
    assert "no PLAIN verifier" in users.why_wrong("old", "AMQPLAIN")
    assert users.why_wrong("nobody", "PLAIN") == users.why_wrong("all", "PLAIN")


def test_a_password_is_checked_with_any_verifier_of_it(users: Users) -> None:
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-512"):
        users.put("guest", "sécret", [mechanism])
        assert (users.verify("guest", "sécret"), users.verify("guest", "secret")) == (True, False)
        assert users.supports("PLAIN")
        assert not users.supports("SCRAM-SHA-256")
        assert not users.verify("guest", "\u0378")  # a character that SCRAM does not allow


def test_an_unknown_user_s_salt_is_always_the_same_and_like_the_others(users: Users) -> None:
    users.put("guest", "secret")
    mine = users.scram("SCRAM-SHA-256", "guest")
    first, again = users.scram("SCRAM-SHA-256", "nobody"), Users(users.path).scram("SCRAM-SHA-256", "nobody")
    users.put("other", "secret")
    later = users.scram("SCRAM-SHA-256", "nobody")
    assert first.salt == again.salt == later.salt != users.scram("SCRAM-SHA-256", "somebody").salt
    assert (first.iterations, len(first.salt)) == (mine.iterations, len(mine.salt))


def test_a_file_of_an_earlier_version_works(users: Users) -> None:
    users.put("guest", "secret", ["PLAIN"])
    Path(users.path).write_text(lines_of(users)[1] + "\n")
    assert lines_of(users)[0].startswith("guest:scrypt$")
    assert users.verify("guest", "secret")
    Path(users.path).chmod(0o600)
    assert users.check() == []
    assert not users.supports("SCRAM-SHA-256")


# ---- qstore-passwd ----


def passwd(*arguments: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(command, arguments, input=given)


def test_the_command_adds_and_removes(users: Users) -> None:
    assert passwd("--stdin", users.path, "guest", given="one\n").stdout == "guest: added\n"
    assert users.verify("guest", "one")
    assert passwd("--stdin", users.path, "guest", given="two\r\n").stdout == "guest: password changed\n"
    assert users.verify("guest", "two")
    assert passwd("--delete", users.path, "guest").stdout == "guest: removed\n"
    assert [line for line in lines_of(users) if not line.startswith(":decoy$")] == []


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


def test_the_command_lists_and_verifies(users: Users) -> None:
    assert passwd("--stdin", users.path, "guest", given="one\n").exit_code == 0
    mechanisms = [word for name in MECHANISMS for word in ("--mechanism", name.lower())]
    assert passwd("--stdin", *mechanisms, users.path, "full", given="two\n").exit_code == 0
    listed = passwd("--list", users.path)
    assert listed.stdout == f"guest: PLAIN, SCRAM-SHA-256\nfull: {', '.join(MECHANISMS)}\n"
    right = passwd("--verify", "--stdin", users.path, "guest", given="one\n")
    assert (right.exit_code, right.stdout) == (0, "guest: the password is right\n")
    for name, password in (("guest", "two"), ("nobody", "two")):
        wrong = passwd("--verify", "--stdin", users.path, name, given=password)
        assert (wrong.exit_code, wrong.stdout) == (1, f"{name}: unknown user or wrong password\n")


def test_options_that_exclude_each_other(users: Users) -> None:
    for arguments in (
        ("--list", "--delete", users.path),
        ("--list", users.path, "guest"),
        (users.path,),
        ("--delete", users.path),
        ("--mechanism", "GSSAPI", users.path, "guest"),
    ):
        assert passwd(*arguments).exit_code == 2


# ---- imports ----

DUMP = rb"""VERSION=3
format=print
type=hash
db_pagesize=4096
HEADER=END
 guest\00QPID\00userPassword
 g\c3\bcest \\
 other\00ELSEWHERE\00userPassword
 x
 guest\00QPID\00cmusaslsecretOTP
 x
 a b\00QPID\00userPassword
 x
DATA=END
"""


def imported(users: Users, kind: str, content: bytes, *options: str) -> Result:
    source = Path(users.path).with_suffix(".source")
    source.write_bytes(content)
    return passwd(*options, "--import", kind, str(source), users.path)


def test_a_sasldb_is_imported(users: Users) -> None:
    result = imported(users, "sasldb", DUMP)
    assert result.exit_code == 1, result.output  # two users are left out
    assert "1 user imported" in result.stdout
    assert "'other' is of realm 'ELSEWHERE'" in result.stderr
    assert "'a b' is not a valid user name" in result.stderr
    assert users.verify("guest", "güest \\")
    assert users.supports("SCRAM-SHA-256")
    assert "güest" not in Path(users.path).read_text()


@pytest.mark.skipif(shutil.which("db5.3_load") is None, reason="db5.3_load is not installed")
@pytest.mark.parametrize("kind", ["hash", "btree"])
def test_a_sasldb_is_imported_from_the_database_itself(users: Users, kind: str) -> None:
    source = Path(users.path).with_suffix(".sasldb")
    text = b"guest\\00QPID\\00userPassword\nsecret\n"
    subprocess.run(["db5.3_load", "-T", "-t", kind, str(source)], input=text, check=True)
    result = passwd("--import", "sasldb", str(source), users.path)
    assert result.exit_code == 0, result.output
    assert users.verify("guest", "secret")


def test_the_java_broker_s_files_are_imported(users: Users) -> None:
    plain = imported(users, "plain", b"# people\nguest:secret:x\nanna:pass\n\nnonsense\nguest:again\n")
    assert plain.exit_code == 1
    assert "line 5: not name:password" in plain.stderr
    assert "line 6: user guest again" in plain.stderr
    assert users.verify("guest", "secret:x")
    hashed = imported(users, "base64md5", b"martin:X03MO1qnZdYdgyfeuILPmQ==\nanna:X03MO1qnZdYdgyfeuILPmQ==\nx:YQ==\n")
    assert hashed.exit_code == 1
    assert "user anna is already in" in hashed.stderr
    assert "line 3: not the base64 of an MD5 hash" in hashed.stderr
    assert "PLAIN only" in hashed.stdout
    assert (users.verify("martin", "password"), users.verify("martin", "passwore")) == (True, False)
    assert users.verify("anna", "pass")
    assert "X03MO1qnZdYdgyfeuILPmQ" not in Path(users.path).read_text()
    martin = users.find("martin")
    assert martin is not None
    assert martin.mechanisms() == ("PLAIN",)
    again = imported(users, "base64md5", b"otto:X03MO1qnZdYdgyfeuILPmQ==\n", "--mechanism", "CRAM-MD5-HASHED")
    assert again.exit_code == 0, again.output
    assert "PLAIN and CRAM-MD5-HASHED only" in again.stdout
    otto = users.find("otto")
    assert otto is not None
    assert otto.mechanisms() == ("PLAIN", "CRAM-MD5-HASHED")


def test_files_that_cannot_be_imported(users: Users) -> None:
    for content in (b"guest:secret\n", b"\xff", b"", b"VERSION=3\nHEADER=END\n key\nDATA=END\n"):
        result = imported(users, "sasldb", content)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
    assert not Path(users.path).exists()


@given(st.sampled_from(FORMATS), st.binary(max_size=200), st.booleans())
def test_arbitrary_import_yields_valid_user_names(kind: str, content: bytes, is_dump: bool) -> None:
    prefix = b"VERSION=3\nformat=print\nHEADER=END\n" if is_dump else b""
    with contextlib.suppress(ValueError):
        found = read_import(kind, prefix + content, "QPID")
        assert all(is_user_name(user.name) for user in found.users)


def test_definitions_get_no_verifiers_that_are_as_good_as_the_password() -> None:
    made = Verifiers.make("anna", "secret", "QPID", MECHANISMS)
    assert set(made.mechanisms()) == set(MECHANISMS)
    kept = Verifiers.of_rabbit(*made.exported())
    assert set(kept.mechanisms()) == {"PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert kept.matches("secret")
    only_md5 = Verifiers.of_md5(bytes(16), ["CRAM-MD5", "CRAM-MD5-HASHED"])
    assert Verifiers.of_rabbit(*only_md5.exported()).mechanisms() == ("PLAIN",)
    assert Verifiers(cram=made.cram, digest_md5=made.digest_md5).exported()[1] == ""
