"""One analysis of a small fleet, with every step and option, that many tests look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from qstore.tools.generate.fleet import FleetSpec, StoreFormat
from qstore.tools.generate.make import make_store
from qstore.tools.report.content import ReportContent
from qstore.tools.spark.request import Request, prepare
from tests.support.dump import Line, dump

UNVERIFIED: Final = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Options for Java: it does not check Spark's classes when it loads them."""
SHORT_LIVED: Final = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {UNVERIFIED}"
"""The same, and it does not spend more on compiling and on collecting garbage than a test can win back."""


class Fleet(NamedTuple):
    """What is analyzed.

    Attributes:
        paths: of the stores: two that qpidd wrote, and two damaged ones.
        nothing: a directory that is no store.
        log: what was sent, as CSV with a column id: the first store's outstanding messages, and one that never arrived.
        shown: what a dump shows of each store, its lines of kind message and queue.
    """

    paths: tuple[str, ...]
    nothing: str
    log: str
    shown: dict[str, list[Line]]

    def request(self, out: Path) -> Request:
        """Everything, of all of it."""
        return Request(
            (*self.paths, self.nothing), str(out), bodies=True, publisher_log=self.log, publisher_id="id",
            compare=self.paths, report=True,
        )  # fmt: skip

    def messages(self, path: str | None = None) -> list[Line]:
        """The messages that a dump shows, of all stores or of one."""
        lines = [line for store, lines in self.shown.items() if path in (None, store) for line in lines]
        return [line for line in lines if line["kind"] == "message"]


class Analysis(NamedTuple):
    """The analysis of a fleet, and what it was asked for."""

    fleet: Fleet
    request: Request
    summary: Any

    @property
    def report(self) -> ReportContent:
        """The report's content."""
        content: ReportContent = self.summary.report
        return content

    def table(self, spark: Any, *names: str) -> list[Any]:
        """The rows of a result."""
        rows: list[Any] = spark.read.parquet(self.request.path(*names)).collect()
        return rows


def make_fleet(directory: Path, real: Callable[[str], Any]) -> Fleet:
    """The fleet, made in a directory; `real` opens a fixture."""
    common: dict[str, Any] = {"queues": 3, "messages": 600, "in_doubt": 3, "transactions": 0.3}
    paths = [str(real(name).path) for name in ("legacy-d-dtx", "linear-c-localtx")]
    for number, form in enumerate((StoreFormat.QSTORE, StoreFormat.LINEARSTORE)):
        below = directory / form.value
        below.mkdir()
        spec = FleetSpec(format=form, seed=number + 3, damage=1.0, **common)
        paths.append(str(below / make_store(spec, str(below), 1)["name"]))
    shown = {path: dump(path, "--outstanding", "--json", "--body", "none").lines() for path in paths}
    nothing, log = directory / "nothing", directory / "sent.csv"
    nothing.mkdir()
    fleet = Fleet(tuple(paths), str(nothing), str(log), shown)
    log.write_text("\n".join(["id", *(line["message_id"] for line in fleet.messages(paths[0])), "never-arrived"]))
    return fleet


def analyzed(spark: Any, request: Request) -> Any:
    """The summary of an analysis in the tests' session."""
    from qstore.tools.spark.analysis import analyze

    prepare(request, force=False)
    return analyze(spark, request, lambda _: None)
