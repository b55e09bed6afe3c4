"""`qstore-shell` on stopped stores: what it shows, what it changes, what it refuses, and its prompt."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from qstore.store.disk import OsWritableDisk
from qstore.store.environment import tool_environment
from qstore.store.repair.quarantine import QuarantineWriter
from qstore.tools.qstore_shell import command as qstore_shell
from qstore.tools.store_shell.commands import COMMANDS, Settings, Shell
from qstore.tools.store_shell.place import ShellError, read_line, read_wanted, split_commands
from qstore.tools.store_shell.store import StorePlace
from tests.support.dump import dump
from tests.support.fixtures import LEGACY_STORES, LINEAR_STORES, StoreFixture, StoreOpener, snapshot
from tests.support.opened_store import COMPRESSES, MESSAGES, SALT, OpenedStore, enqueue, make_store, message
from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today
from tests.support.terminal import Terminal
from tests.tools.interchange_runs import bring, export, held, of_kind, write_lines
from tests.tools.shell_runs import bodies, fails, made, objects, shell, text
from tests.tools.test_commands import command
from tests.tools.test_interchange import simple_lines


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return made(tmp_path / "store")


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("unchanged") / "store")


# ---- looking ----


def test_tables_in_a_pager_fit_the_terminal(open_fixture: StoreOpener, tmp_path: Path) -> None:
    path = open_fixture("legacy-d-dtx").path
    words = [*command("qstore-shell"), str(path), "-c", "list queues; show d.q1; list transactions; list bindings"]
    with Terminal(words, tmp_path, TERM="xterm", COLUMNS="80", PAGER="tee") as terminal:
        lines = [re.sub(r"\x1b[\[=>?][0-9;?]*[a-zA-Z]?", "", line) for line in terminal.read_all().splitlines()]
    tables = [line for line in lines if not line.startswith("notice: ")]
    assert sum("───" in line for line in tables) == 3
    assert max(map(len, tables)) <= 80


@pytest.mark.parametrize("name", today(LEGACY_STORES + LINEAR_STORES, 3))
def test_real_stores_are_read_and_not_changed(open_fixture: StoreOpener, name: str) -> None:
    path = open_fixture(name).path
    before = snapshot(path)
    expected = dump(path, "--outstanding", "--json").lines()
    shown = objects(path, "list all")
    for kind in ("exchange", "queue", "binding", "transaction"):
        assert of_kind(shown, kind) == of_kind(expected, kind)
    assert of_kind(shown, "journal")
    for queue in of_kind(shown, "queue"):
        messages = [line for line in of_kind(expected, "message") if line["queue"] == queue["name"]]
        found = objects(path, f"dump '{queue['name']}'")
        assert [{k: v for k, v in line.items() if k != "redelivered"} for line in found] == messages
    queue = of_kind(shown, "queue")[0]["name"]
    assert "convert it with qstore-recover" in fails(path, f"purge '{queue}'", options=("--yes",))
    assert snapshot(path) == before


def test_selections(unchanged: Path) -> None:
    rids = [line["rid"] for line in objects(unchanged, "show orders")]
    assert len(rids) == 6

    def found(*commands: str) -> list[str]:
        return [line["body"] for line in objects(unchanged, *commands) if line["kind"] == "message"]

    assert found(f"dump orders {rids[1]}..{rids[3]:#x}") == ["1", "2", "3"]
    assert found(f"dump orders {rids[0]} {rids[4]}..") == ["0", "4", "5"]
    assert found("dump orders first=2 where n > 2") == ["3", "4"]
    assert found("select orders where n IN (1, 5); dump") == ["1", "5"]
    assert found("select orders first=1; dump; clear; select orders first=2; dump") == ["0", "0", "1"]
    assert found("select orders; dump where n = 3 OR JMSRedelivered = TRUE") == ["1", "3"]
    assert "no messages" in text(unchanged, "show orders where n = 77")
    shown = text(unchanged, "select orders where n < 3", "select", "show", "dump show=all first=1")
    assert "selected: queue orders, where n < 3; the queue has 6 messages" in shown
    assert "header n: 0 (int64)" in shown
    assert "30  " in text(unchanged, "dump orders first=1 as=hex")
    marks = {line["body"]: line["redelivered"] for line in objects(unchanged, "dump orders")}
    assert marks == {str(number): number == 1 for number in range(6)}


def test_lists(unchanged: Path) -> None:
    assert [line["name"] for line in objects(unchanged, "list queues market")] == ["orders"]
    (binding,) = objects(unchanged, "list bindings market")
    assert (binding["exchange"], binding["queue"], binding["key"]) == ("market", "orders", "eu.#")
    assert "no transactions" in text(unchanged, "list transactions")
    journals = objects(unchanged, "list journals")
    assert {line["queue"]: line["outstanding"] for line in journals} == {"TplStore": 0, "orders": 6, "old": 0}
    assert "there is no exchange" in fails(unchanged, "list queues nosuch")
    assert "first= takes a number, such as first=10" in fails(unchanged, "show orders first=x")


def test_help(unchanged: Path) -> None:
    (reported,) = [line for line in objects(unchanged, "help") if line["name"] == "purge"]
    assert objects(unchanged, "help purge") == [reported]
    assert (reported["kind"], reported["syntax"]) == ("command", "QUEUE")
    shown = text(unchanged, "help", "help list")
    assert "Available Commands" in shown
    assert "Usage: list queues [EXCHANGE] | exchanges | bindings [EXCHANGE] | transactions | journals | all" in shown
    for name in ("dump", "load", "clear", "show", "select", "list", "help", "quit", "copy", "move", "delete", "purge"):
        assert f"\n{name} " in shown
        assert f"Usage: {name}" in text(unchanged, f"help {name}")
    assert "\nExample: purge old\n" in text(unchanged, "help purge")
    assert reported["example"] == COMMANDS["purge"].example


def test_the_examples_of_the_help(tmp_path: Path) -> None:
    store = made(tmp_path / "store", 70)
    for each in COMMANDS.values():
        if each.example:
            text(store, each.example.replace("amq.topic", "market"), options=("--yes",))
    assert bodies(store, "orders") == [*map(str, range(10, 61)), "hello world"]


# ---- changing ----


def test_copies_and_moves_keep_everything(tmp_path: Path, store: Path) -> None:
    before = {line["body"]: line for line in of_kind(held(store, tmp_path), "message")}
    assert "copy 2 messages" in text(store, "copy orders first=2 to old")
    assert "done, as record" in text(store, "move orders to old where n > 3")
    assert bodies(store, "old") == ["0", "1", "4", "5"]
    assert bodies(store, "orders") == ["0", "1", "2", "3"]
    after = of_kind(held(store, tmp_path), "message")
    assert len(after) == 8
    for line in after:
        expected = before[line["body"]] | {"queue": line["queue"]}
        assert line == expected  # all bytes of its header, and whether it was delivered
    assert dump(store, "--outstanding", "--json").code == 0
    (change,) = objects(store, "move old to orders")
    assert (change["change"], change["messages"], change["done"]) == ("move", 4, True)
    assert change["last_rid"] - change["first_rid"] >= 3


def test_compressed_and_branches_in_doubt(tmp_path: Path, dtx: StoreFixture) -> None:
    path = make_store(tmp_path / "compressed")
    assert text(path, "inject orders body=x", "copy orders to orders")
    assert len(objects(path, "show orders")) == 2 * (len(MESSAGES) + 1)
    assert export(dtx.path, tmp_path / "e.tar.zst").exit_code == 0
    assert bring(tmp_path / "e.tar.zst", tmp_path / "dtx").exit_code == 0
    transactions = objects(tmp_path / "dtx", "list transactions")
    queue = next(
        line["queue"] for line in of_kind(held(dtx.path, tmp_path), "message") if line["state"] != "outstanding"
    )
    count = len([line for line in objects(tmp_path / "dtx", f"show {queue}") if line["state"] != "outstanding"])
    result = shell(tmp_path / "dtx", f"purge {queue}", options=("--yes",))
    assert f"notice: {count} messages of transactions in doubt are left out" in result.stderr
    assert len(objects(tmp_path / "dtx", f"show {queue}")) == count
    for number, transaction in enumerate(transactions):
        outcome = ("commit", "rollback")[number % 2]
        text(tmp_path / "dtx", f"resolve {transaction['xid']} {outcome}", options=("--yes",))
    assert objects(tmp_path / "dtx", "list transactions") == []
    assert "no transaction" in fails(tmp_path / "dtx", f"resolve {transactions[0]['xid']} commit", options=("--yes",))


def test_content_far_larger_than_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is moved in as many transactions as its content takes, and read in small parts."""
    opened = OpenedStore(tool_environment(), tmp_path / "store")
    orders, _ = (opened.make_queue(name, arguments=COMPRESSES) for name in ("orders", "old"))
    for _ in range(40):
        opened.enqueue(orders, message(bytes(100_000)))
        opened.flush(orders)
    assert opened.store.close()
    monkeypatch.setattr("qstore.store.repair.stopped_messages.MAX_BYTES", 500_000)
    monkeypatch.setattr("qstore.store.repair.stopped_messages.MAX_COPIED_BYTES", 900_000)
    assert "more than 3,600,000 bytes: take fewer" in fails(tmp_path / "store", "copy orders to old")
    tracemalloc.start()
    (change,) = objects(tmp_path / "store", "move orders to old")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (change["messages"], len(objects(tmp_path / "store", "show old"))) == (40, 40)
    assert change["bytes"] < 100_000  # as they are stored
    assert most < 4_000_000  # all of them have as many


def test_removals_are_asked_for(store: Path) -> None:
    assert "--yes permits it" in fails(store, "purge orders; list queues")
    assert "delete 3 messages" in fails(store, "delete orders where n < 3")
    assert len(bodies(store, "orders")) == 6
    text(store, "delete orders where n < 3", options=("--yes",))
    assert bodies(store, "orders") == ["3", "4", "5"]
    (change,) = objects(store, "purge orders", options=("--yes",))
    assert (change["change"], change["messages"], change["done"]) == ("purge", 3, True)
    assert "nothing to do: purge 0 messages" in text(store, "purge orders", options=("--yes",))


def test_new_messages(tmp_path: Path, store: Path) -> None:
    (tmp_path / "body").write_bytes(b"\xff\x00binary")
    text(store, "inject old body='hello; world' priority=7 header.region=EU header.n=3 content_type=text/plain")
    text(store, f"inject old file={tmp_path / 'body'} routing_key=key exchange=market reply_to=amq.direct/back")
    first, second = objects(store, "dump old where region = 'EU' AND n = 3; dump old where region IS NULL")
    assert (first["body"], first["priority"], first["headers"]) == ("hello; world", 7, {"region": "EU", "n": 3})
    assert first["properties"]["content_type"] == "text/plain"
    assert (second["body_base64"], second["exchange"], second["routing_key"]) == ("/wBiaW5hcnk=", "market", "key")
    assert second["delivery_mode"] == 2
    for words, reported in (
        ("old", "a message has a body"),
        ("old body", "is not NAME=VALUE"),
        ("old body=x priority=high", "priority is a number"),
        ("old body=x colour=red", "has no field 'colour'"),
        ("old body=x message_id=no", "is not valid"),
        ("nosuch body=x", "there is no queue"),
        (f"old file={tmp_path / 'nosuch'}", "No such file"),
        ("old file=~nosuchuser/x", "No such file"),
        ("old file=a\0b", "no NUL characters"),
        (f"old file={tmp_path}", "Is a directory"),
        ("quarantine all", "no such directory"),
    ):
        assert reported in fails(store, f"inject {words}"), words


def test_messages_of_a_quarantine(tmp_path: Path, store: Path) -> None:
    kept = tmp_path / "kept"
    writer = QuarantineWriter(OsWritableDisk(), str(kept))
    for number in range(2):
        raw = enqueue("version 2", message(b"kept %d" % number), number + 1)
        writer.add("orders", "/f", 0, raw, "broken", None, salt=SALT)
    writer.close()
    text(store, f"inject quarantine 1 from {kept} to old")
    text(store, f"inject quarantine 2 from {kept}")
    assert (bodies(store, "old"), bodies(store, "orders")[-1]) == (["kept 0"], "kept 1")
    assert objects(store, "show old")[0]["redelivered"] is True
    assert "--again injects it again" in fails(store, f"inject quarantine all from {kept}")
    assert "there is no entry 3" in fails(store, f"inject quarantine 3 from {kept}")


def test_another_store(tmp_path: Path, store: Path) -> None:
    other = made(tmp_path / "other", 2)
    found = objects(store, f"load {other}; show orders")
    assert [line["kind"] for line in found] == ["opened", "message", "message"]
    assert "no such" in fails(store, f"load {tmp_path}/nosuch").lower()
    assert "is open already" in fails(store, f"load {tmp_path}/./store")
    (tmp_path / "java").mkdir()
    (tmp_path / "java/00000000.jdb").write_bytes(b"x")
    assert "a Berkeley DB JE store of Apache's Java broker" in fails(store, f"load {tmp_path}/java")
    assert "connection refused" in fails(store, "load amqp://127.0.0.1:1")


def test_very_many_messages_are_copied_as_an_import(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstore.tools.store_shell.store.MAX_COPIED_MESSAGES", 2)
    text(store, "inject old body=here", "copy orders first=4 to old", "copy old to old where n > 1")
    assert bodies(store, "old") == ["here", "0", "1", "2", "3", "2", "3"]
    assert bodies(store, "orders") == ["0", "1", "2", "3", "4", "5"]
    marks = [line["redelivered"] for line in objects(store, "show old")]
    assert marks == [False, False, True, False, False, False, False]
    lines = of_kind(held(store, tmp_path), "message")
    originals = {line["body"]: line for line in lines if line["queue"] == "orders"}
    copies = [line for line in lines if line["queue"] == "old"][1:]
    assert [line | {"queue": "orders"} for line in copies] == [originals[line["body"]] for line in copies]


# ---- what is refused ----


def test_a_store_in_use_is_refused(store: Path) -> None:
    with (store / "rhm.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"process {os.getpid()} has this store open: stop the broker first" in fails(store, "list all", code=2)
    assert objects(store, "list queues")


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("nonsense", "unknown command 'nonsense'"),
        ("list", "list what?"),
        ("list things", "list what?"),
        ("select 5", "select which queue?"),
        ("select nosuch", 'there is no queue "nosuch"'),
        ("select orders where", "where is followed by a selector"),
        ("select orders where n >", "this is not a selector"),
        ("select orders 9..1", "below its beginning"),
        ("show orders 'x", "no closing quotation"),
        ("list queues where n = 1", "does not take a selector"),
        ("dump orders show=feet", "dump shows content, headers, all"),
        ("move orders", "move to which queue?"),
        ("move orders to orders", "both source and destination"),
        ("copy orders to nosuch", 'there is no queue "nosuch"'),
        ("purge", "purge which queue?"),
        ("resolve 12 maybe", "resolve which transaction"),
        ("resolve xyz commit", "not a transaction id"),
        ("resolve 1234 commit", "there is no transaction 1234 in doubt"),
        ("inject", "inject what?"),
        ("inject quarantine", "inject quarantine NUMBER"),
        ("inject quarantine 3", "no such directory"),
        ("load", "load what?"),
        ("quit now", "quit takes no arguments"),
        ("show \udcff", 'there is no queue "\\xff"'),
        ("show \ud800", 'there is no queue "\\xed\\xa0\\x80"'),
        ("help nosuch", "unknown command"),
    ],
)
def test_errors_are_reported_in_one_line(unchanged: Path, line: str, reported: str) -> None:
    assert reported.lower() in fails(unchanged, line).lower()


@pytest.mark.parametrize("content", [b"", b"\x00" * 4096, b"RHMs" + b"\xff" * 600])
def test_hostile_stores(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rhm").mkdir()
    (tmp_path / "rhm" / "STORE").write_bytes(content)
    result = shell(tmp_path, "list all; purge x", options=("--yes",))
    assert result.exit_code in (1, 2)
    assert result.stderr.strip()
    assert "qstore-shell: " in fails(tmp_path / "nosuch", "list all", code=2)


def test_damage_is_reported_and_costs_nothing_else(tmp_path: Path, store: Path) -> None:
    (journal,) = [line for line in objects(store, "list journals") if line["queue"] == "orders"]
    (file,) = Path(journal["path"]).glob("*0000.jdat")
    content = bytearray(file.read_bytes())
    content[0x200 + 0x60] ^= 0xFF
    file.write_bytes(content)
    result = shell(store, "dump orders; show orders where n > 1; list all")
    assert result.exit_code == 0
    assert "notice: damage: " in result.stderr
    assert "5" in result.stdout
    assert "qstore-check" in fails(store, "purge orders", options=("--yes",))


def test_scripts(tmp_path: Path, store: Path) -> None:
    script = tmp_path / "script"
    script.write_text("# what is old goes\nselect orders where n < 2; move to old\n\nquit\nnonsense\n")
    assert shell(store, options=("-f", str(script))).exit_code == 0
    assert bodies(store, "old") == ["0", "1"]
    result = shell(store, stdin="list queues\nnonsense\npurge old\n", options=("--yes",))
    assert (result.exit_code, "orders" in result.stdout) == (1, True)
    assert bodies(store, "old") == ["0", "1"]  # what follows a failure is not done


def test_input_that_is_not_text(store: Path) -> None:
    result = CliRunner().invoke(qstore_shell, [str(store)], input=b"list queues\nselect \xff\n")
    assert result.exit_code == 1
    assert result.stderr == 'qstore-shell: there is no queue "\\xff"; list queues shows what there is\n'
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command("qstore-shell"), str(store)]
    assert subprocess.run(closed, capture_output=True, check=True, timeout=PATIENCE_SECONDS).stderr == b""


def test_large_files_are_not_read_whole(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.tools.store_shell.commands._MAX_FILE", 1000)
    assert "more than 1,000 bytes" in fails(store, "inject old file=/dev/zero")


def test_interrupted_move_reports_its_progress(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstore.store.repair.stopped_messages.MAX_MESSAGES", 2)
    done: list[int] = []

    def interrupt(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            signal.raise_signal(signal.SIGINT)

    place = StorePlace(str(store), lambda _: None)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        place.plan_copy(read_wanted(["orders"], None, None), "old", removes=True).apply(interrupt)
    assert interrupted.value.__notes__ == ["4 messages done, the others are unchanged"]
    place.close()
    assert (bodies(store, "orders"), bodies(store, "old")) == (["4", "5"], ["0", "1", "2", "3"])


# ---- the prompt ----


def test_terminal_history_omits_passwords_and_sigterm_ends_it(tmp_path: Path, store: Path) -> None:
    """Passwords are not kept, a broker that is not there does not end the shell, and SIGTERM does."""
    with Terminal([*command("qstore-shell"), str(store)], tmp_path / "state", PAGER="cat") as terminal:
        terminal.read_until("qstore$ ")
        terminal.type("load amqp://guest/secret@127.0.0.1:1\n")
        terminal.read_until("connection refused")
        terminal.type("list transactions\n")
        terminal.read_until("no transactions")
        terminal.read_until("qstore$ ")
        terminal.terminate()
        assert terminal.code() == 143
    (history,) = tmp_path.rglob("*.history")
    assert history.read_text().split() == ["list", "transactions"]


def test_on_a_terminal(tmp_path: Path, store: Path) -> None:
    shell = [*command("qstore-shell"), str(store)]
    with Terminal(shell, tmp_path / "state", PAGER="sed s/^/paged:/") as terminal:
        terminal.read_until("for examining and changing message stores")
        terminal.read_until("qstore$ ")
        terminal.type("sel\torde\t\n")
        terminal.read_until("selected: queue orders; the queue has 6 messages")
        terminal.read_until("qstore:orders$ ")
        terminal.type("delete first=2\n")
        terminal.read_until("this cannot be undone. Do it? [y/N] ")
        terminal.type("no\n")
        terminal.read_until("nothing was changed")
        terminal.read_until("qstore:orders$ ")
        terminal.type("delete first=2\n")
        terminal.read_until("[y/N] ")
        terminal.type("yes\n")
        terminal.read_until("done")
        terminal.read_until("qstore:orders$ ")
        terminal.type("dump\n")
        terminal.read_until("paged:5")
        terminal.read_until("qstore:orders$ ")
        terminal.interrupt()
        terminal.read_until("qstore:orders$ ")
        terminal.type("quit\n")
        assert terminal.code() == 0
    assert bodies(store, "orders") == ["2", "3", "4", "5"]
    (history,) = tmp_path.rglob("*.history")
    assert history.name == "qstore-shell.history"
    assert history.stat().st_mode & 0o077 == 0
    kept = history.read_text().split("\n")
    assert "delete first=2" in kept
    assert "yes" not in kept


# ---- parts ----


def test_completion(unchanged: Path, tmp_path: Path) -> None:
    place = StorePlace(str(unchanged), lambda _: None)
    completing = Shell(lambda _: place, Settings())
    assert list(completing.completions([], "s")) == ["select", "show"]
    assert list(completing.completions(["show"], "o")) == []
    completing.open("")
    for before, word, expected in (
        (["show"], "o", ["old", "orders"]),
        (["move", "orders"], "t", ["to"]),
        (["move", "orders", "to"], "ol", ["old"]),
        (["dump"], "show=", ["show=content", "show=headers", "show=all"]),
        (["list"], "q", ["queues"]),
        (["list", "queues"], "m", ["market"]),
        (["resolve", "1234"], "", ["commit", "rollback"]),
        (["help"], "l", ["list", "load"]),
        (["nonsense", "x", "y"], "fi", ["first="]),
    ):
        assert sorted(completing.completions(before, word)) == sorted(expected), before
    completing.close()
    lines = [*simple_lines(0)[:1], {"kind": "queue", "name": "a b"}, {"kind": "queue", "name": "\\xff"}]
    assert bring(write_lines(tmp_path / "in.jsonl", lines), tmp_path / "odd", "--edited").exit_code == 0
    odd = StorePlace(str(tmp_path / "odd"), lambda _: None)
    completing = Shell(lambda _: odd, Settings())
    completing.open("")
    assert sorted(completing.completions(["show"], "")) == ["'\\xff'", "'a b'"]
    completing.run("select '\\xff'")
    completing.close()


def test_words() -> None:
    assert split_commands("a 'b;c' ; d\ne \"f;\" ;; ") == ["a 'b;c'", "d", 'e "f;"']
    line = read_line("select orders  Where region = 'it''s' AND where_ = 1")
    assert (line.words, line.where) == (["select", "orders"], "region = 'it''s' AND where_ = 1")
    assert read_line("inject q body='no where here' # comment").words == ["inject", "q", "body=no where here"]
    assert split_commands("# it's old; purge q\npurge q#1; list all #; purge q") == ["purge q#1", "list all"]
    assert read_line("purge q#1 #2").words == ["purge", "q#1"]
    assert read_line(r"purge a\ #b").words == ["purge", "a #b"]
    assert split_commands(r"""inject q body=it\'s; list "a\";b" """) == [r"inject q body=it\'s", r'list "a\";b"']
    for quoted in ("it's", 'a"b', "a where b", "a;b"):
        line = read_line(f"show {shlex.quote(quoted)} where a = 'it''s # \\' OR b = ';' # selected")
        assert (line.words, line.where) == (["show", quoted], r"a = 'it''s # \' OR b = ';'")
    for odd in ("show 'a", 'show "a', "show a\\", 'show "a\\', "show 'a where b = 1"):
        assert split_commands(odd) == [odd]
        with pytest.raises(ShellError):
            read_line(odd)
    wanted = read_wanted(["q", "0x10..", "7", "first=3"], None, None)
    assert (wanted.queue, wanted.rids[1], wanted.first) == ("q", (7, 7), 3)
    assert wanted.text == "queue q, records 0x10..0xffffffffffffffff, 0x7, the first 3 messages"
    assert read_wanted(["first=1"], None, wanted).queue == "q"
    with pytest.raises(ShellError):
        read_wanted(["q", "r"], None, None)
