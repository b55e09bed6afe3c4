"""The console's pages in a real browser: headless Chromium, driven by Playwright's library, which downloads nothing."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qstore.store.disk import OsWritableDisk
from qstore.store.repair.quarantine import QuarantineWriter
from qstore.tools.qstore_passwd import command as qstore_passwd
from tests.support.running_broker import BrokerMaker, RunningBroker, make_broker, one_broker
from tests.system.test_console import RunningConsole

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)

__all__ = ["make_broker"]

broker = pytest.fixture(one_broker, scope="module")
HOSTILE = "<img src=x onerror=\"document.title='owned'\">&amp; 'quoted' %2F/\u202etxt"
PATIENCE_MILLISECONDS = 60_000
PAGES = (
    "", "queues", "exchanges", "connections", "channels", "federation", "store", "transactions", "access", "alarms",
    "log",
)  # fmt: skip


@pytest.fixture(scope="module")
def console(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    """A console of a broker that has queues, bindings and messages with hostile names."""
    running = RunningConsole(
        "-b", f"127.0.0.1:{broker.port}", "--history-dir", str(tmp_path_factory.mktemp("history")),
        "--sample-interval", "1",
    )  # fmt: skip
    host = "/api/{}/%2F/{}"
    name = "%3Cimg%20src%3Dx%20onerror%3D%22document.title%3D'owned'%22%3E%26amp%3B%20'quoted'%20%252F%2F%E2%80%AEtxt"
    assert running.ask("PUT", host.format("queues", name), {"durable": True})[0] == 201
    assert running.ask("PUT", host.format("exchanges", name), {"type": "topic", "durable": True})[0] == 201
    assert running.ask("POST", f"/api/bindings/%2F/e/{name}/q/{name}", {"routing_key": HOSTILE})[0] == 201
    for number in range(120):
        assert running.ask("PUT", host.format("queues", f"many{number:03}"), {})[0] == 201
    body = {
        "properties": {"delivery_mode": 2, "content_type": HOSTILE, "headers": {HOSTILE: HOSTILE}},
        "routing_key": HOSTILE, "payload": HOSTILE, "payload_encoding": "string",
    }  # fmt: skip
    assert running.ask("POST", "/api/exchanges/%2F/amq.default/publish", body) == (200, {"routed": True})
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as library:
        running = library.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


class Window:
    """A browser page with a logged-in user; `complaints` has the browser's errors and warnings."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def log_in(self, user: str = "guest", password: str = "guest") -> None:
        self.page.goto(self.url)
        self.page.get_by_label("User").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()
        self.page.locator("#top").wait_for()

    def show(self, path: str) -> None:
        """Show a page, and wait until it has been filled."""
        self.page.goto(f"{self.url}/#/{path}")
        path, _, _ = path.partition("?")
        self.page.locator(f'main[data-path="{path}"][aria-busy="false"] h1').first.wait_for()
        assert self.page.locator(".note.bad").is_hidden()


@contextlib.contextmanager
def window(
    chromium: Any, console: RunningConsole, width: int = 1300, *, user: str = "guest", **options: Any
) -> Iterator[Window]:
    context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
    try:
        opened = Window(context.new_page(), console.url)
        opened.log_in(user)
        yield opened
        assert opened.complaints == []
    finally:
        context.close()


@pytest.mark.parametrize("width", [1300, 400], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_shown_without_complaints(
    chromium: Any, console: RunningConsole, width: int, scheme: str
) -> None:
    with window(chromium, console, width, color_scheme=scheme) as shown:
        for path in PAGES:
            shown.show(path)
            across = shown.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert across == 0, f"{path} is {across} pixels too wide"
        ground = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(15, 15, 14)") == (scheme == "dark")
        shown.page.locator("#theme").click()
        assert shown.page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


def test_hostile_names_are_text(chromium: Any, console: RunningConsole) -> None:
    with window(chromium, console) as shown:
        shown.show("queues")
        shown.page.get_by_role("link", name=HOSTILE).click()
        shown.page.get_by_role("heading", name=HOSTILE).wait_for()
        shown.page.locator("summary", has_text="Messages").click()
        shown.page.get_by_role("button", name="Browse").click()
        shown.page.locator("pre", has_text=HOSTILE).wait_for()
        shown.show("exchanges")
        shown.page.get_by_role("link", name=HOSTILE).first.click()
        shown.page.get_by_role("heading", name=HOSTILE).wait_for()
        assert shown.page.locator("main img").count() == 0
        assert shown.page.title() != "owned"


def test_the_log_is_shown_while_it_is_written(chromium: Any, console: RunningConsole) -> None:
    from playwright.sync_api import expect

    with window(chromium, console) as shown:
        shown.show("log")
        lines = shown.page.locator("pre.log .line")
        lines.filter(has_text="Broker running").wait_for()
        assert console.ask("PUT", "/api/queues/%2F/while%20it%20is%20shown", {"durable": True})[0] == 201
        new = lines.filter(has_text='Journal "while it is shown": Created')
        new.wait_for()
        shown.page.get_by_label("Only lines with this text").fill("while it is")
        expect(lines.filter(has_text="Broker running")).to_be_hidden()
        expect(new).to_be_visible()
        shown.page.get_by_role("button", name="Hold").click()
        shown.page.get_by_role("button", name="Continue").wait_for()
        shown.show("queue/%2F/while%20it%20is%20shown")
        shown.page.get_by_text("Nothing: the next file may be entered").wait_for()


def test_an_alarm_is_on_the_overview_and_on_its_page(chromium: Any, make_broker: BrokerMaker) -> None:
    running = make_broker("--broker-memory", "2M", "--max-paging-size", "1K").start()
    one = RunningConsole("-b", f"127.0.0.1:{running.port}", "--no-history", "--sample-interval", "1")
    try:
        assert one.ask("PUT", "/api/queues/%2F/q", {})[0] == 201
        body = {"properties": {}, "routing_key": "q", "payload": "x" * 60_000, "payload_encoding": "string"}
        while one.ask("POST", "/api/exchanges/%2F/amq.default/publish", body)[0] == 200:
            pass
        with window(chromium, one) as shown:
            for path in ("", "alarms"):
                shown.show(path)
                shown.page.locator(".note.serious", has_text="messages are refused").wait_for()
    finally:
        one.process.kill()
        one.process.communicate()


def test_a_consumer_is_closed_from_the_page_of_its_queue(
    chromium: Any, console: RunningConsole, broker: RunningBroker
) -> None:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))
    channel = connection.channel()
    channel.queue_declare("held", durable=True)
    channel.basic_consume("held", lambda *_: None, consumer_tag="worker")
    with window(chromium, console) as shown:
        shown.show("queue/%2F/held")
        shown.page.get_by_role("row", name="worker").get_by_role("button", name="Close").click()
        shown.page.get_by_role("button", name="Close it").click()
        shown.page.get_by_text("Nobody consumes this queue.").wait_for()
    connection.process_data_events(1)
    assert channel.consumer_tags == []
    connection.close()


MANY = 1500
MAX_CALLS, MAX_BYTES = 16, 400_000
"""Of a page, however many queues there are."""


def test_pages_stay_small_with_many_queues(
    chromium: Any, make_broker: BrokerMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    import pika

    running = make_broker().start()
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", running.port, heartbeat=0))
    channel = connection.channel()
    for number in range(MANY):
        channel.queue_declare(f"queue.{number:05}")
        channel.queue_bind(f"queue.{number:05}", "amq.topic", f"key.{number}")
    one = RunningConsole("-b", f"127.0.0.1:{running.port}", "--no-history")
    try:
        assert one.ask("GET", "/api/overview")[1]["object_totals"]["queues"] == MANY
        assert len(one.ask("GET", "/api/bindings")[1]) == 2 * MANY
        with window(chromium, one) as shown:
            sizes: list[int] = []
            shown.page.on("response", lambda answer: sizes.append(len(answer.body())))
            for path in (*PAGES, "queue/%2F/queue.00000", "exchange/%2F/amq.topic"):
                sizes.clear()
                began = time.perf_counter()
                shown.show(path)
                seconds = time.perf_counter() - began
                shown.page.wait_for_load_state("networkidle")
                with capsys.disabled():
                    print(f"{path or 'overview'}: {seconds:.2f} s, {len(sizes)} calls, {sum(sizes):,} bytes")
                assert len(sizes) <= MAX_CALLS, path
                assert sum(sizes) <= MAX_BYTES, path
    finally:
        one.process.kill()
        one.process.communicate()
        connection.close()


def test_lists_are_paged_sorted_and_filtered(chromium: Any, console: RunningConsole) -> None:
    from playwright.sync_api import expect

    with window(chromium, console) as shown:
        shown.show("queues")
        rows = shown.page.locator("tbody tr")
        shown.page.get_by_text("Page 1 of 3").wait_for()
        assert rows.count() == 50
        shown.page.get_by_role("button", name="Next").click()
        shown.page.get_by_text("Page 2 of 3").wait_for()
        shown.page.get_by_role("button", name="Ready").click()
        shown.page.locator("th[aria-sort=descending]", has_text="Ready").wait_for()
        assert HOSTILE in rows.first.inner_text()
        shown.page.get_by_label("Filter by name").fill("many00")
        expect(rows).to_have_count(10, timeout=PATIENCE_MILLISECONDS)
        assert "name=many00" in shown.page.url
        shown.page.reload()
        expect(rows).to_have_count(10, timeout=PATIENCE_MILLISECONDS)
        shown.page.get_by_label("Filter by name").fill("nothing like that")
        shown.page.get_by_text("Nothing matches").wait_for()


def test_the_life_of_a_queue(chromium: Any, console: RunningConsole) -> None:
    with window(chromium, console) as shown:
        page = shown.page
        shown.show("queues")
        page.get_by_role("button", name="Declare a queue").click()
        page.get_by_label("Name", exact=True).fill("made here")
        page.get_by_label("Arguments, as JSON").fill("{nonsense")
        page.get_by_role("button", name="Declare", exact=True).click()
        page.get_by_text("This is not JSON").wait_for()
        page.get_by_label("Arguments, as JSON").fill('{"x-max-length": 10}')
        page.get_by_role("button", name="Declare", exact=True).click()
        page.get_by_text("Queue made here is declared.").wait_for()
        assert console.ask("GET", "/api/queues/%2F/made%20here")[1]["arguments"] == {"x-max-length": 10}
        shown.show("queue/%2F/made%20here")
        page.locator("summary", has_text="Publish a message").click()
        page.get_by_label("Message", exact=True).fill("hello")
        page.get_by_role("button", name="Publish").click()
        page.get_by_text("The message was published.").wait_for()
        page.locator(".tile", has_text=re.compile("Ready.*1")).wait_for()
        page.get_by_role("img", name="files of the journal are in use").wait_for()
        page.get_by_role("button", name="Move messages").click()
        page.get_by_label("To the queue").fill("many000")
        page.get_by_role("button", name="Move", exact=True).click()
        page.get_by_text("The messages were moved.").wait_for()
        assert console.ask("GET", "/api/queues/%2F/many000")[1]["messages"] == 1
        shown.show("queue/%2F/many000")
        page.get_by_role("button", name="Purge").click()
        page.get_by_role("button", name="Delete the messages").click()
        page.get_by_text("many000 was purged.").wait_for()
        shown.show("queue/%2F/made%20here")
        page.get_by_role("button", name="Delete").click()
        page.get_by_label("Only if it is empty").check()
        page.get_by_role("button", name="Delete the queue").click()
        page.get_by_text("made here was deleted.").wait_for()
        assert console.ask("GET", "/api/queues/%2F/made%20here")[0] == 404


def test_bindings_are_added_and_removed(chromium: Any, console: RunningConsole) -> None:
    with window(chromium, console) as shown:
        page = shown.page
        shown.show("exchange/%2F/amq.topic")
        page.locator("summary", has_text="Bind something to it").click()
        page.get_by_label("Name", exact=True).fill("many001")
        page.locator("input[name=key]").first.fill("a.#")
        page.get_by_role("button", name="Bind").click()
        page.get_by_text("The binding was added.").wait_for()
        page.get_by_role("row", name="many001").get_by_role("button", name="Unbind").click()
        page.locator("dialog").get_by_role("button", name="Unbind").click()
        page.get_by_text("Nothing is bound to it").wait_for()
        assert [row["source"] for row in console.ask("GET", "/api/queues/%2F/many001/bindings")[1]] == [""]


def test_damage_that_was_set_aside_is_shown(chromium: Any, console: RunningConsole, broker: RunningBroker) -> None:
    place = broker.data_directory / "quarantine"
    with window(chromium, console) as shown:
        try:
            shown.show("store")
            shown.page.get_by_text("Nothing is in quarantine.").wait_for()
            with contextlib.closing(QuarantineWriter(OsWritableDisk(), str(place))) as writer:
                writer.add(HOSTILE, "JournalData.0000.jdat", 51_200, b"damaged", HOSTILE, 5)
            shown.show("")
            shown.page.get_by_text("Damage in the store was quarantined (1 entry)").get_by_role("link").click()
            record = shown.page.get_by_role("row", name="JournalData.0000.jdat")
            record.wait_for()
            assert record.locator("th, td").all_inner_texts()[1:] == [
                "JournalData.0000.jdat", "51,200", "7 B", HOSTILE, "waits",
            ]  # fmt: skip
        finally:
            shutil.rmtree(place, ignore_errors=True)


def test_a_login_lasts_over_a_reload_until_the_logout(chromium: Any, console: RunningConsole) -> None:
    with window(chromium, console) as shown:
        shown.page.reload()
        shown.page.get_by_role("link", name="Queues", exact=True).wait_for()
        assert shown.page.evaluate("document.cookie") == ""
        shown.page.get_by_role("button", name="Log out").click()
        shown.page.get_by_label("Password").wait_for()
        shown.page.reload()
        shown.page.get_by_label("Password").wait_for()


def test_dialogs_and_lists_are_used_with_the_keyboard(chromium: Any, console: RunningConsole) -> None:
    with window(chromium, console) as shown:
        page = shown.page
        shown.show("queues")
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Declare a queue").focus()
        page.keyboard.press("Enter")
        page.locator("dialog").wait_for()
        assert page.evaluate("document.activeElement.name") == "name"
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
        page.get_by_role("button", name="Name").focus()
        page.keyboard.press("Enter")
        page.locator("th[aria-sort=ascending]", has_text="Name").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "Name"


def test_it_says_that_the_broker_is_gone_and_goes_on_when_it_is_back(chromium: Any, tmp_path: Path) -> None:
    from tests.broker.client.conftest import BrokerOnOnePort

    running = BrokerOnOnePort(tmp_path / "broker")
    running.start()
    console = RunningConsole("-b", f"127.0.0.1:{running.port}", "--no-history", "--sample-interval", "1")
    try:
        with window(chromium, console) as shown:
            running.kill()
            shown.page.locator("#state", has_text="Not connected").wait_for()
            shown.page.locator(".note.bad").wait_for()
            running.start()
            shown.page.locator(".note.bad").wait_for(state="hidden")
            assert shown.page.locator("#state").inner_text() == ""
    finally:
        console.process.kill()
        console.process.communicate()
        running.close()


def test_policies_are_set_and_removed(chromium: Any, console: RunningConsole) -> None:
    with window(chromium, console) as shown:
        page = shown.page
        shown.show("access")
        page.get_by_role("button", name="Set a policy").click()
        page.get_by_label("Name", exact=True).fill("short")
        page.get_by_label("Pattern of names").fill("^many00")
        page.get_by_label("Definition, as JSON").fill('{"max-length": 7}')
        page.get_by_role("button", name="Save").click()
        page.get_by_text("It is saved, and in effect.").wait_for()
        assert console.ask("GET", "/api/policies/%2F/short")[1]["definition"] == {"max-length": 7}
        page.get_by_role("row", name="short").get_by_role("button", name="Remove").click()
        page.locator("dialog").get_by_role("button", name="Remove").click()
        page.get_by_text("There are no policies.").wait_for()


def test_parameters_are_listed_without_their_values_and_removed(chromium: Any, console: RunningConsole) -> None:
    path = "/api/parameters/vhost-limits/%2F/limits"
    assert console.ask("PUT", path, {"value": {"max-queues": 123_456}})[0] in (201, 204)
    with window(chromium, console) as shown:
        page = shown.page
        with page.expect_response(lambda answer: "parameters" in answer.url) as response:
            shown.show("access")
        row = page.get_by_role("row", name="vhost-limits")
        row.wait_for()
        assert "vhost-limits" in response.value.text()
        assert "123456" not in response.value.text()
        row.get_by_role("button", name="Remove").click()
        page.locator("dialog").get_by_role("button", name="Remove").click()
        page.get_by_text("There are no parameters.").wait_for()
    assert console.ask("GET", path)[0] == 404


def test_a_damaged_store_is_looked_at_and_recovered(chromium: Any, tmp_path: Path) -> None:
    from tests.support.fixtures import set_writable, unpack

    store = unpack("legacy-d-dtx", tmp_path / "own").path
    set_writable(store, writable=True)
    with next(store.rglob("d.q1/JournalData.0000.jdat")).open("r+b") as file:
        file.seek(1024)
        file.write(b"XXXXXXXX")
    console = RunningConsole("--store", str(store))
    assert console.process.stderr is not None
    entrance = console.process.stderr.readline().partition("open ")[2].strip()
    context = chromium.new_context(viewport={"width": 1300, "height": 900})
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(entrance)
        page.get_by_text("There is damage in one place").wait_for()
        assert "enter" not in page.url
        page.get_by_role("link", name="d.q2").click()
        page.get_by_role("button", name="0xb", exact=True).click()
        page.locator("dialog pre", has_text="d.q2/").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="All records, as written").click()
        page.get_by_role("cell", name="enqueue").first.wait_for()
        page.get_by_role("link", name="Damage").click()
        page.get_by_role("button", name="Show the bytes").click()
        page.locator("pre", has_text="58 58 58 58 58 58 58 58").wait_for()
        page.get_by_role("link", name="Recovery").click()
        page.get_by_role("button", name="Recover", exact=True).click()
        page.get_by_label("New directory").fill(str(tmp_path / "saved"))
        page.locator("dialog").get_by_role("button", name="Recover", exact=True).click()
        page.get_by_role("row", name=re.compile("Recover into .*done")).wait_for()
        assert (tmp_path / "saved" / "rhm").is_dir()
        page.get_by_role("link", name="d.q2").click()
        page.get_by_role("button", name="All records, as written").click()
        page.get_by_role("button", name="Replay from here").first.click()
        page.get_by_label("New directory").fill(str(tmp_path / "again"))
        page.locator("dialog").get_by_role("button", name="Replay", exact=True).click()
        page.get_by_text("The replay has begun").wait_for()
        page.get_by_role("link", name="Recovery").click()
        page.get_by_role("row", name=re.compile("Replay d.q2 into .*done")).wait_for()
        assert (tmp_path / "again" / "rhm").is_dir()
        assert complaints == []
    finally:
        context.close()
        console.process.kill()
        console.process.communicate()


ROLES = {
    "administrator": PAGES,
    "monitoring": PAGES[:-1],
    "policymaker": ("", "queues", "exchanges", "connections", "channels", "access"),
    "management": ("", "queues", "exchanges", "connections", "channels", "access"),
    "": (),
}
"""The pages that users with each tag are offered."""


def test_users_are_offered_the_pages_that_their_tags_can_read(
    chromium: Any, make_broker: BrokerMaker, tmp_path: Path
) -> None:
    users, credentials = tmp_path / "users", tmp_path / "secret"
    for tag in ROLES:
        name = tag or "nobody"
        made = CliRunner().invoke(qstore_passwd, ["--tags", tag, "--stdin", str(users), name], input="guest\n")
        assert made.exit_code == 0
    credentials.write_text("administrator:guest\n")
    credentials.chmod(0o600)
    running = make_broker("--auth", "yes", "--user-file", str(users)).start()
    one = RunningConsole("-b", f"127.0.0.1:{running.port}", "--no-history", "--credentials-file", str(credentials))
    try:
        for tag in ROLES:
            body = {"configure": ".*", "write": ".*", "read": ".*"}
            path = f"/api/permissions/%2F/{tag or 'nobody'}"
            assert one.ask("PUT", path, body, user="administrator:guest")[0] == 201
        path = "/api/queues/%2F/q"
        assert one.ask("PUT", path, {"durable": True}, user="administrator:guest")[0] == 201
        for tag, pages in ROLES.items():
            with window(chromium, one, user=tag or "nobody") as shown:
                links = shown.page.locator("#nav a")
                assert [each.get_attribute("href") for each in links.all()] == [f"#/{path}" for path in pages]
                for path in (*pages, *(["queue/%2F/q", "exchange/%2F/amq.topic"] if pages else ())):
                    shown.show(path)
                if not pages:
                    shown.page.get_by_text("nobody sees nothing here").wait_for()
    finally:
        one.process.kill()
        one.process.communicate()


def test_virtual_hosts_are_those_of_who_has_permissions_in_them(make_broker: BrokerMaker, tmp_path: Path) -> None:
    users, credentials = tmp_path / "users", tmp_path / "secret"
    for name, tag in (("admin", "administrator"), ("eve", "management")):
        made = CliRunner().invoke(qstore_passwd, ["--tags", tag, "--stdin", str(users), name], input="guest\n")
        assert made.exit_code == 0
    credentials.write_text("admin:guest\n")
    credentials.chmod(0o600)
    running = make_broker("--auth", "yes", "--user-file", str(users)).start()
    one = RunningConsole("-b", f"127.0.0.1:{running.port}", "--no-history", "--credentials-file", str(credentials))
    try:
        assert one.ask("PUT", "/api/vhosts/other", {}, user="admin:guest")[0] == 201
        body = {"configure": "", "write": "", "read": ".*"}
        assert one.ask("PUT", "/api/permissions/%2F/eve", body, user="admin:guest")[0] == 201
        (own,) = one.ask("GET", "/api/vhosts/other/permissions", user="admin:guest")[1] or [None]
        assert own is None, "there were no permissions: everyone could use it"
        assert one.ask("PUT", "/api/vhosts/later", {}, user="admin:guest")[0] == 201
        (own,) = one.ask("GET", "/api/vhosts/later/permissions", user="admin:guest")[1]
        assert own == {"user": "admin", "vhost": "later", "configure": ".*", "write": ".*", "read": ".*"}
        assert one.ask("GET", "/api/qstore/history?queue=q&vhost=%2F", user="eve:guest")[0] == 200
        assert one.ask("GET", "/api/qstore/history?queue=q&vhost=other", user="eve:guest")[0] == 401
        assert one.ask("GET", "/api/qstore/history?queue=q&vhost=other", user="admin:guest")[0] == 200
    finally:
        one.process.kill()
        one.process.communicate()


def test_shovels_and_upstreams_are_made_watched_and_deleted(
    chromium: Any, console: RunningConsole, broker: RunningBroker
) -> None:
    for name in ("shovelled", "reached"):
        assert console.ask("PUT", f"/api/queues/%2F/{name}", {"durable": True})[0] == 201
    uri = f"amqp://guest:hidden-secret@127.0.0.1:{broker.port}"
    with window(chromium, console) as shown:
        page = shown.page
        shown.show("federation")
        page.get_by_role("button", name="Add a shovel").click()
        page.get_by_label("Name", exact=True).fill(HOSTILE)
        page.locator("input[name=src-queue]").fill("shovelled")
        page.locator("input[name=dest-queue]").fill("reached")
        page.locator("input[name=dest-uri]").fill("nonsense://")
        page.get_by_role("button", name="Save").click()
        page.locator("dialog .error").wait_for()
        page.locator("input[name=dest-uri]").fill(uri)
        page.get_by_role("button", name="Save").click()
        row = page.get_by_role("row", name="queue reached")
        row.get_by_text("running").wait_for()
        page.get_by_role("button", name="Add an upstream").click()
        page.get_by_label("Name", exact=True).fill("up")
        page.locator("input[name=uri]").fill(uri)
        page.get_by_label("Hops at most").fill("2")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("row", name="up").get_by_text("hops 2").wait_for()
        page.get_by_role("button", name="Add a set of upstreams").click()
        page.get_by_label("Name", exact=True).fill("every")
        page.get_by_label("Upstreams, with").fill("up")
        page.get_by_role("button", name="Save").click()
        page.get_by_role("row", name="every").wait_for()
        assert "hidden-secret" not in page.content()
        value = console.ask("GET", "/api/parameters/federation-upstream/%2F/up")[1]["value"]
        assert value == {"uri": uri, "max-hops": 2, "ack-mode": "on-confirm"}
        body = {"properties": {}, "routing_key": "shovelled", "payload": "x", "payload_encoding": "string"}
        assert console.ask("POST", "/api/exchanges/%2F/amq.default/publish", body) == (200, {"routed": True})
        row.get_by_role("cell", name="1", exact=True).wait_for()
        row.get_by_role("button", name="Restart").click()
        page.get_by_text("It is started again.").wait_for()
        for each in ("queue reached", "every", "up"):
            page.get_by_role("row", name=each).get_by_role("button", name="Delete").click()
            page.locator("dialog").get_by_role("button", name="Delete").click()
            page.get_by_role("row", name=each).wait_for(state="detached")
    for component in ("shovel", "federation-upstream", "federation-upstream-set"):
        assert console.ask("GET", f"/api/parameters/{component}") == (200, [])


def test_domains_and_their_links_are_made_watched_and_deleted(
    chromium: Any, console: RunningConsole, broker: RunningBroker
) -> None:
    for name in ("linked", "target"):
        assert console.ask("PUT", f"/api/queues/%2F/{name}", {"durable": True})[0] == 201
    with window(chromium, console) as shown:
        page = shown.page
        shown.show("federation")
        page.get_by_role("button", name="Add a domain").click()
        page.get_by_label("Name", exact=True).fill("far")
        page.get_by_label("Addresses").fill("nonsense://")
        page.get_by_label("Password").fill("hidden-secret")
        page.get_by_label("User").fill("guest")
        page.get_by_role("button", name="Save").click()
        page.locator("dialog .error").wait_for()
        page.get_by_label("Addresses").fill(f"127.0.0.1:{broker.port}")
        page.get_by_role("button", name="Save").click()
        domain = page.get_by_role("row", name=f"127.0.0.1:{broker.port}")
        domain.get_by_text("guest").wait_for()
        page.get_by_role("button", name="Add a link through a domain").click()
        page.get_by_label("Name", exact=True).fill(HOSTILE)
        page.get_by_label("Domain", exact=True).fill("far")
        page.locator("select[name=direction]").select_option("outgoing")
        page.get_by_label("Source").fill("linked")
        page.get_by_label("Target").fill("target")
        page.get_by_role("button", name="Save").click()
        row = page.get_by_role("row", name="outgoing")
        row.get_by_text("running").wait_for()
        body = {"properties": {}, "routing_key": "linked", "payload": "x", "payload_encoding": "string"}
        assert console.ask("POST", "/api/exchanges/%2F/amq.default/publish", body) == (200, {"routed": True})
        row.get_by_role("cell", name="1", exact=True).wait_for()
        row.get_by_role("button", name="Restart").click()
        page.get_by_text("It is started again.").wait_for()
        assert "hidden-secret" not in page.content()
        for each in (row, domain):
            each.get_by_role("button", name="Delete").click()
            page.locator("dialog").get_by_role("button", name="Delete").click()
            each.wait_for(state="detached")
    assert console.ask("GET", "/api/qstore/domains") == (200, [])


def test_virtual_hosts_are_made_limited_and_removed(chromium: Any, console: RunningConsole) -> None:
    with window(chromium, console) as shown:
        page = shown.page
        shown.show("access")
        page.get_by_role("button", name="Add a virtual host").click()
        page.get_by_label("Name", exact=True).fill(HOSTILE)
        page.get_by_label("Description").fill("for tests")
        page.get_by_role("button", name="Save").click()
        row = page.get_by_role("row", name="for tests")
        row.wait_for()
        page.get_by_role("button", name="Limit a virtual host").click()
        page.get_by_label("Virtual host", exact=True).fill(HOSTILE)
        page.locator("select[name=limit]").select_option("max-queues")
        page.get_by_label("At most").fill("7")
        page.get_by_role("button", name="Save").click()
        row.get_by_text("max-queues = 7").wait_for()
        row.get_by_role("button", name="Remove").click()
        page.locator("dialog").get_by_role("button", name="Remove").click()
        row.wait_for(state="detached")
    assert [each["name"] for each in console.ask("GET", "/api/vhosts")[1]] == ["/"]
