"""Options in a file and in the environment, and which source comes before which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.broker.process.option_table import GROUPS, OptionError
from qstore.broker.process.options import (
    MAX_BYTES,
    ConfigFile,
    Entry,
    GivenOptions,
    Sources,
    Table,
    Values,
    open_sources,
    read_config_file,
    read_environment,
    read_sources,
)

TABLE = Table(GROUPS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "qpidd.conf"


def entries(file: Path, text: str) -> dict[str, str]:
    file.write_text(text)
    return {entry.name: entry.text for entry in read_config_file(str(file), is_optional=False).entries}


# ---- the file ----


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("realm=QPID", "QPID"),
        ("  realm\t =  QPID  ", "QPID"),
        ("realm=QPID\r", "QPID"),
        ("realm=QPID # a comment", "QPID"),
        ("realm=QPID#2", "QPID#2"),
        ("realm=#", ""),
        ('realm="QPID"', "QPID"),
        ('realm = " a # b " # a comment', " a # b "),
        ('realm=""', ""),
        ("realm=", ""),
        ('realm=a "b"', 'a "b"'),
        ("realm=a=b", "a=b"),
        ("realm=ä", "ä"),
        ("\ufeffrealm=QPID", "QPID"),
    ],
)
def test_lines_of_a_file(file: Path, line: str, value: str) -> None:
    assert entries(file, line) == {"realm": value}


def test_a_file_in_the_documents_form(file: Path) -> None:
    text = """
# Configuration file for qpidd
   # another comment

daemon=yes
log-to-syslog=yes
auth=yes
cluster-name="local_test_cluster"
load-module="replication_exchange.so"
link-maintenance-interval=0.1
"""
    assert entries(file, text) == {
        "daemon": "yes", "log-to-syslog": "yes", "auth": "yes", "cluster-name": "local_test_cluster",
        "load-module": "replication_exchange.so", "link-maintenance-interval": "0.1",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["ha-password hunter2", 'ha-password="hunter2', "ha-password:hunter2"])
def test_possible_password_is_not_shown(file: Path, line: str) -> None:
    file.write_text(line)
    with pytest.raises(OptionError) as refusal:
        read_config_file(str(file), is_optional=False)
    assert str(refusal.value) == f'{file}, line 1: "ha-password…" is not name=value'


@pytest.mark.parametrize("line", ["daemon", "=yes", "[broker]", 'realm="QPID', 'realm="a"b', "a b=c", "#x\n!", 'a"=b'])
def test_lines_that_are_none(file: Path, line: str) -> None:
    file.write_text(f"port=1\n{line}\n")
    with pytest.raises(OptionError, match=r"qpidd\.conf, line [23]: .* is not name=value") as refusal:
        read_config_file(str(file), is_optional=False)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"port=1\n\0", "NUL character at byte 7"),
        (b"realm=\xff", "invalid UTF-8 at byte 6"),
        (b"#" * (MAX_BYTES + 1), "larger than 1,048,576 bytes"),
    ],
)
def test_files_that_are_no_configuration(file: Path, data: bytes, text: str) -> None:
    file.write_bytes(data)
    with pytest.raises(OptionError, match=f"qpidd.conf: not a configuration file: {text}; see --config"):
        read_config_file(str(file), is_optional=True)


def test_path_that_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path), str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(OptionError, match="not a configuration file, but a directory or a device"):
            read_config_file(path, is_optional=True)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "no" / "none"):
        assert read_config_file(str(path), is_optional=True) == ConfigFile()
        with pytest.raises(OptionError, match=r"none: the configuration file cannot be read: No such file or direct"):
            read_config_file(str(path), is_optional=False)
    with pytest.raises(OptionError, match="cannot be read: File name too long"):
        read_config_file("x" * 1000, is_optional=True)


def test_a_file_that_may_not_be_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OptionError, match="cannot be read: Permission denied"):
        read_config_file(str(file), is_optional=True)


def test_a_file_that_others_decide_about(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port=1\n")
    file.chmod(0o644)
    assert read_config_file(str(file), is_optional=False).warnings == ()
    file.chmod(0o666)
    (line,) = read_config_file(str(file), is_optional=False).warnings
    assert line.endswith("is world-writable; fix this with chmod o-w")
    file.chmod(0o644)
    owner = file.stat().st_uid
    real = os.fstat

    def of_somebody(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        return os.stat_result((*found[:4], 54_321 if found.st_uid == owner else 0, *found[5:10]))

    monkeypatch.setattr(os, "fstat", of_somebody)
    (line,) = read_config_file(str(file), is_optional=False).warnings
    assert "belongs to user 54321" in line


@given(st.binary(max_size=200) | st.text(alphabet='a=#" \n\t\\', max_size=60).map(str.encode))
def test_arbitrary_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "whatever.conf"
    path.write_bytes(data)
    found, refusal = ConfigFile(), ""
    try:
        found = read_config_file(str(path), is_optional=False)
    except OptionError as error:
        refusal = str(error)
    assert refusal.isprintable()
    assert all(entry.name and entry.place.isprintable() for entry in found.entries)


def test_a_long_line_takes_no_long_time(file: Path) -> None:
    blanks = " " * (MAX_BYTES - 20)
    assert entries(file, f"realm=a{blanks}b") == {"realm": f"a{blanks}b"}
    with pytest.raises(OptionError, match="is not name=value"):
        entries(file, f'realm="{blanks}"b')


# ---- the environment ----


def test_variables() -> None:
    found = read_environment({"QPID_LOG_ENABLE": "info+", "QPID_NO_DATA_DIR": "1", "PATH": "/bin", "qpid_port": "1"})
    assert found == (Entry("log-enable", "info+", "QPID_LOG_ENABLE"), Entry("no-data-dir", "1", "QPID_NO_DATA_DIR"))


@pytest.mark.parametrize("name", ["QPID_SSL_CERT_DB", "QPID_SSL_CERT_NAME", "QPID_HOME", "QPID_WORK", "QPID_JAVA_MEM"])
def test_variables_of_clients_are_passed_over(name: str) -> None:
    assert read_environment({name: "/somewhere"}) == ()


def test_a_variable_that_is_empty_was_not_given() -> None:
    assert read_environment({"QPID_PORT": ""}) == ()


# ---- together ----


def said(
    file: Path, text: str, variables: dict[str, str] | None = None, *arguments: str
) -> tuple[Values, GivenOptions]:
    file.write_text(text)
    sources = open_sources(["--config", str(file), *arguments], variables or {})
    found = read_sources(sources, TABLE)
    values = Values(TABLE, found.given)
    values.check()
    return values, found


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(file: Path) -> None:
    text = "port=1\nmax-connections=1\nconnection-backlog=1\n"
    variables = {"QPID_PORT": "2", "QPID_MAX_CONNECTIONS": "2"}
    values, _ = said(file, text, variables, "-p", "3")
    names = ("port", "max-connections", "connection-backlog", "max-negotiate-time")
    assert [values.number(name) for name in names] == [3, 2, 1, 10_000]


def test_other_names_are_the_same_option(file: Path) -> None:
    values, found = said(file, "auth-realm=A\nauth=yes\ndefault-msg-group=g", {"QPID_REALM": "B"}, "--no-auth")
    assert values.word("realm") == "B"
    assert not values.switch("auth")
    assert values.word("default-message-group") == "g"
    assert found.warnings == []
    values, _ = said(file, "no-auth=yes\n")
    assert not values.switch("auth")


def test_only_list_options_add_up_over_sources(file: Path) -> None:
    text = "load-module=a\nload-module=b\nlog-enable=info+\ninterface=0.0.0.0\ninterface=::\n"
    variables = {"QPID_LOAD_MODULE": "c", "QPID_LOG_ENABLE": "debug"}
    values, _ = said(file, text, variables, "--load-module", "d", "--interface", "127.0.0.1")
    assert values.texts("load-module") == ("a", "b", "c", "d")
    assert values.texts("log-enable") == ("info+", "debug")
    assert values.texts("interface") == ("127.0.0.1",)


@pytest.mark.parametrize(
    ("text", "arguments", "directory", "has_none"),
    [
        ("no-data-dir=yes", ["--data-dir", "d"], "d", False),
        ("data-dir=d", ["--no-data-dir"], None, True),
        ("data-dir=d", ["--no-data-dir=no"], "d", False),
        ("data-dir=d\nno-data-dir=yes", [], "d", True),
    ],
)
def test_conflicting_options_follow_the_higher_source(
    file: Path, text: str, arguments: list[str], directory: str | None, has_none: bool
) -> None:
    values, found = said(file, text, None, *arguments)
    assert (values.text("data-dir"), values.switch("no-data-dir")) == (directory, has_none)
    expected = [f"{file}, line 1: data-dir is ignored: {file}, line 2: no-data-dir is given as well"]
    assert list(found.warnings) == (expected if directory and has_none else [])


def test_unknown_option_gets_a_warning(file: Path) -> None:
    _, found = said(file, "prot=1\nxyzzy=2\nversion=yes\nconfig=x\n--port=3\n", {"QPID_PROT": "1", "QPID_CHECK": "1"})
    assert found.given.keys() == {"config"}
    assert found.warnings == [
        "QPID_CHECK is ignored: it is allowed on the command line only",
        "QPID_PROT: unknown option, ignored; did you mean port?",
        f"{file}, line 1: prot: unknown option, ignored; did you mean port?",
        f"{file}, line 2: xyzzy: unknown option, ignored; see --help",
        f"{file}, line 3: version is ignored: it is allowed on the command line only",
        f"{file}, line 4: config is ignored: it is allowed on the command line only",
        f"{file}, line 5: --port: unknown option, ignored; did you mean port?",
    ]


def test_variables_that_are_not_similar_to_options_get_no_warning(file: Path) -> None:
    variables = {
        f"QPID_{name}": "1" for name in ("BLD", "XYZZY", "SRC", "TESTS", "TESTDATA", "BUILD_DIR", "DEFAULT_BROKER")
    }
    _, found = said(file, "", variables)
    assert found.warnings == []
    table = Table(GROUPS, {"num-jfiles": "store"})
    sources = open_sources(["--config", str(file)], variables | {"QPID_NUM_JFILES": "8", "QPID_LOG_ENABEL": "info"})
    assert read_sources(sources, table).warnings == [
        "QPID_LOG_ENABEL: unknown option, ignored; did you mean log-enable?",
        "QPID_NUM_JFILES is ignored: it is an option of module store, which is not loaded: add --load-module store",
    ]


def test_of_many_unknown_options_some_are_reported(file: Path) -> None:
    _, found = said(file, "".join(f"x{number}=\n" for number in range(100_000)))
    assert len(found.warnings) == 21
    assert found.warnings[-1] == "99,980 more unknown options are ignored"


@pytest.mark.parametrize(
    ("text", "variables", "refusal"),
    [
        ("# a\nport=x\n", {}, r'qpidd\.conf, line 2: port: "x" is not a number from 0'),
        ("auth=perhaps\n", {}, r'qpidd\.conf, line 1: auth: "perhaps" is neither yes nor no'),
        ("daemon=maybe\n", {}, r"line 1: daemon: .* is neither yes nor no"),
        ("data-dir=\n", {}, "line 1: data-dir: the value must not be empty"),
        ("port=1\nport=2\n", {}, "line 2: port is given twice"),
        ("ha-cluster=yes\n", {}, r"line 1: ha-cluster is not supported yet: .*; remove the option"),
        ("", {"QPID_PORT": "tcp://10.0.0.1:5672"}, 'QPID_PORT: "tcp://10.0.0.1:5672" is not a number'),
        ("", {"QPID_HA_CLUSTER": "yes"}, "QPID_HA_CLUSTER is not supported yet"),
    ],
)
def test_an_error_says_where_it_is(file: Path, text: str, variables: dict[str, str], refusal: str) -> None:
    with pytest.raises(OptionError, match=refusal):
        said(file, text, variables)


# ---- which file, which modules ----


def test_which_file_is_read(file: Path, tmp_path: Path) -> None:
    file.write_text("port=1\n")
    other = tmp_path / "other.conf"
    other.write_text("port=2\n")
    for arguments, variables, text in (
        ([f"--config={file}"], {"QPID_CONFIG": str(other)}, "1"),
        ([], {"QPID_CONFIG": str(other)}, "2"),
    ):
        assert [entry.text for entry in open_sources(arguments, variables).file.entries] == [text]
    with pytest.raises(OptionError, match="--config: the value must not be empty"):
        open_sources(["--config="], {})


def sources(arguments: list[str], environment: dict[str, str], file: dict[str, str]) -> Sources:
    variables = {f"QPID_{name.upper().replace('-', '_')}": text for name, text in environment.items()}
    lines = tuple(Entry(name, text, "file") for name, text in file.items())
    return Sources(arguments, read_environment(variables), ConfigFile(lines))


def test_modules_are_those_of_all_sources() -> None:
    assert sources(["--load-module=a"], {"load-module": "b"}, {"load-module": "c"}).modules() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "environment", "file", "directory"),
    [
        ([], {}, {}, None),
        (["--module-dir", "a"], {"module-dir": "b"}, {"module-dir": "c"}, "a"),
        ([], {"module-dir": "b"}, {"module-dir": "c"}, "b"),
        ([], {}, {"module-dir": "c"}, "c"),
        (["--no-module-dir"], {}, {"module-dir": "c"}, None),
        (["--no-module"], {}, {"module-dir": "c"}, None),
        ([], {"no-module": "1"}, {"module-dir": "c"}, None),
        ([], {"module-dir": "b"}, {"no-module-dir": "yes"}, "b"),
        (["--no-module-dir=no"], {}, {"module-dir": "c"}, "c"),
        (["--no-module-dir", "--module-dir=a"], {}, {}, None),
    ],
)
def test_which_directory_of_modules(
    arguments: list[str], environment: dict[str, str], file: dict[str, str], directory: str | None
) -> None:
    assert sources(arguments, environment, file).module_directory() == directory
