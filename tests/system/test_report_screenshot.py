"""The report of `qstore-analyze` in a real browser: headless Chromium, where the machine has it.

The Debian package is `chromium`. Nothing is downloaded, and the browser resolves no host.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from qstore.tools.report.content import Finding, FindingKind, ReportContent
from qstore.tools.report.page import render
from tests.support.png import Picture, read_png
from tests.support.report_content import content, full_queue, plain_queue, summed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)

WIDTH, HEIGHT = 700, 1300  # the first plots of a small report are in it
#: The colours of style.css: the page, a mark of a plot, the sign of something bad.
LIGHT = ((0xF6, 0xF6, 0xF4), (0x2A, 0x6F, 0xC9), (0xB3, 0x26, 0x1E))
DARK = ((0x0F, 0x0F, 0x0E), (0x5A, 0x9D, 0xF0), (0xFF, 0x9D, 0x94))


def browse(page: Path, *options: str) -> str:
    """What a browser says of a page, after it may not have complained in its console."""
    assert BROWSER is not None
    profile = page.parent / "profile"
    run = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
            "--no-first-run", "--hide-scrollbars", "--enable-logging=stderr", f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={WIDTH},{HEIGHT}", *options, page.as_uri(),
        ],
        capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    shutil.rmtree(profile, ignore_errors=True)
    complaints = [line for line in run.stderr.decode().splitlines() if "CONSOLE" in line]
    assert complaints == []
    return run.stdout.decode()


def shot(tmp_path: Path, text: str, *options: str) -> Picture:
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(text)
    browse(page, f"--screenshot={picture}", *options)
    return read_png(picture.read_bytes())


def one_plot() -> ReportContent:
    """A report whose plots are in the first window, and that says something bad."""
    finding = Finding(FindingKind.CHECKSUM, 2)
    whole = content(dataclasses.replace(full_queue(seed=4), findings=()))
    totals = dataclasses.replace(whole.totals, findings=summed(finding))
    return dataclasses.replace(whole, inputs=(), findings=(finding,), totals=totals)


@pytest.mark.parametrize(
    ("options", "colours"),
    [((), LIGHT), (("--force-dark-mode", "--blink-settings=preferredColorScheme=0"), DARK)],
    ids=["light", "dark"],
)
def test_the_page_is_drawn(tmp_path: Path, options: tuple[str, ...], colours: tuple[tuple[int, int, int], ...]) -> None:
    picture = shot(tmp_path, render(one_plot()), *options)
    assert (picture.width, picture.height) == (WIDTH, HEIGHT)
    page, mark, bad = colours
    assert picture.at(0, 0) == page
    found = picture.colours()
    assert found[mark] > 1000  # bars, lines and the meter
    assert found[bad] > 100
    assert len(found) > 50  # the letters' edges


def test_without_plots_there_are_no_marks(tmp_path: Path) -> None:
    """What the other test looks for comes from the plots, and from nothing else."""
    picture = shot(tmp_path, render(content(plain_queue(), plots=0)))
    assert picture.at(0, 0) == LIGHT[0]
    assert picture.colours()[LIGHT[1]] == 0


def driven(text: str, script: str) -> str:
    """The page with its policy taken away, and a script that acts as a reader would."""
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert free != text
    return free.replace("</body>", f"<script>{script}</script></body>")


MEASURE = """
    const frames = [1300, 1000, 650, 420].map((width) => {
        const frame = document.createElement('iframe');
        frame.style.width = width + 'px';
        frame.srcdoc = '<!DOCTYPE html>' + document.documentElement.outerHTML.replace(/<script[^]*?<[/]script>/g, '');
        return frame;
    });
    const measured = (frame) => Array.from(frame.contentDocument.querySelectorAll('.tiles')).map((tiles) => {
        const boxes = Array.from(tiles.children).map((tile) => tile.getBoundingClientRect());
        const last = boxes.filter((box) => box.top === boxes[boxes.length - 1].top);
        const values = Array.from(tiles.querySelectorAll('dd'));
        const isWhole = (dd) => dd.scrollWidth <= dd.clientWidth && dd.clientHeight < 40;
        return [boxes.length, last.length, values.filter((dd) => !isWhole(dd)).map((dd) => dd.textContent)];
    });
    document.body.replaceChildren(...frames);
    Promise.all(frames.map((frame) => new Promise((done) => { frame.onload = done; })))
        .then(() => document.body.replaceChildren(JSON.stringify(frames.map(measured))));
"""


def test_tiles_show_their_values_on_one_line_and_none_stands_alone(tmp_path: Path) -> None:
    """At 1300, 1000, 650 and 420 pixels."""
    whole = content(dataclasses.replace(full_queue(seed=4), live_bytes=1023 * 2**20 + 999_999))
    assert whole.queues[0].seconds is not None
    totals = dataclasses.replace(whole.totals, live_bytes=1023 * 2**20 + 999_999, records=1_234_567_890)
    page = tmp_path / "report.html"
    page.write_text(driven(render(dataclasses.replace(whole, totals=totals)), MEASURE))
    found = re.search("<body>(.*)</body>", browse(page, "--dump-dom", "--virtual-time-budget=10000"), re.DOTALL)
    assert found is not None
    for each in json.loads(found[1]):
        assert [tiles[:2] for tiles in each] in ([[6, 6], [8, 8]], [[6, 3], [8, 4]], [[6, 2], [8, 2]])
        assert [tiles[2] for tiles in each] == [[], []]


def three_queues() -> str:
    reports = [dataclasses.replace(plain_queue(name), outstanding=size) for name, size in
               (("bravo", 5), ("alpha", 20), ("charlie", 100))]  # fmt: skip
    damaged = dataclasses.replace(reports[0], findings=(Finding(FindingKind.DAMAGE, 1),))
    return render(content(damaged, *reports[1:], plots=0))


#: What a reader does, one after another -> the rows that are then to be seen, in order.
ACTIONS = {
    "": ["bravo", "alpha", "charlie"],
    "press('queue')": ["alpha", "bravo", "charlie"],
    "press('queue') // again": ["charlie", "bravo", "alpha"],
    "press('outstanding')": ["charlie", "alpha", "bravo"],
    "press('outstanding') // again": ["bravo", "alpha", "charlie"],
    "write('LPH')": ["alpha"],
    "write('qpidd damaged')": ["bravo"],
    "write('')": ["bravo", "alpha", "charlie"],
    "document.getElementById('found').click()": ["bravo"],
}

READER = """
    const press = (text) => Array.from(document.querySelectorAll('#queues thead button'))
        .find((button) => button.textContent === text).click();
    const write = (text) => {
        const filter = document.getElementById('filter');
        filter.value = text;
        filter.dispatchEvent(new Event('input'));
    };
    const seen = () => Array.from(document.querySelectorAll('#queues tbody tr'))
        .filter((row) => row.checkVisibility()).map((row) => row.cells[1].textContent);
    const told = [];
    const note = () => told.push([seen(), document.getElementById('shown').textContent]);
"""


def test_the_table_is_sorted_and_filtered(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    actions = "\n".join(f"{action}\nnote();" for action in ACTIONS)
    page.write_text(driven(three_queues(), f"{READER}{actions}\ndocument.body.replaceChildren(JSON.stringify(told));"))
    found = re.search("<body>(.*)</body>", browse(page, "--dump-dom"), re.DOTALL)
    assert found is not None
    expected = [[names, f"{len(names)} of 3 queues"] for names in ACTIONS.values()]
    assert json.loads(found[1]) == expected


def test_the_policy_lets_the_script_run(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(three_queues())
    assert "3 of 3 queues" not in three_queues()
    assert "3 of 3 queues" in browse(page, "--dump-dom")


def test_a_single_queue_is_written_in_the_singular(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render(content(plain_queue(), plots=0)))
    assert "1 of 1 queue<" in browse(page, "--dump-dom")


def test_hostile_names_do_not_run(tmp_path: Path) -> None:
    """Even with no policy: an element made of a name would change the title, or complain in the console."""
    name = "</bdi></script><script>document.title='ran'</script><img src=x onerror=document.title='ran'>"
    report = dataclasses.replace(full_queue(name, store=name), findings=(Finding(FindingKind.DAMAGE, 1),))
    page = tmp_path / "report.html"
    page.write_text(driven(render(content(report, title="untouched")), ""))
    assert "<title>untouched</title>" in browse(page, "--dump-dom")
