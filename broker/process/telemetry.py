"""`--telemetry`: finished spans of the broker's tracer, sent to a collector by a process of its own.

    broker   writes spans as JSON to a socket, once in a tick. If the socket is full, because the collector is slow or
             the process is gone, it counts them and goes on: the event loop never waits
    process  (this module as a program) reads them, and exports up to `AT_ONCE` of them a second with the SDK of
             OpenTelemetry: OTLP over HTTP, in protobuf

The socket's buffer is the only queue between them, some thousand spans. The process ends when the broker has closed the
socket, or is gone, after it has sent what is left. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and
OTEL_EXPORTER_OTLP_HEADERS are those of the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from orjson import dumps, loads

from qstore.broker.log.logs import log_of
from qstore.broker.model.tick import Tick
from qstore.broker.model.tracing import Span, Tracer
from qstore.broker.process.helper import Helper
from qstore.formats.wording import plural

AT_ONCE: Final = 512
"""Spans of one request to the collector."""

PACKET: Final = 20
"""Spans of one packet: with texts as long as they may be, it has some 100 kB."""

_MAX_PACKET: Final = 1 << 20
_BUFFER: Final = 4 << 20  # asked for; the kernel may allow less (net.core.wmem_max)
_SECONDS: Final = 1.0
_TOLD_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 10.0
_MODULES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_LOG: Final = log_of("Management")


class TelemetryError(Exception):
    """Spans cannot be sent. The text is one line for the user."""


class Telemetry:
    """The traces of one broker.

    Args:
        url: the collector's.
        limit: spans that may begin in a second.
        tick: the broker's.

    Attributes:
        lost: spans for which there was no room.

    Raises:
        TelemetryError: the URL is not valid, or OpenTelemetry is not installed.
    """

    def __init__(self, url: str, limit: int, tick: Tick) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TelemetryError(f"--telemetry {url}: this is not a URL like http://localhost:4318/v1/traces")
        if parts.username is not None or parts.password is not None:
            raise TelemetryError("--telemetry: the URL has a password; use OTEL_EXPORTER_OTLP_HEADERS")
        if not all(map(_is_installed, _MODULES)):
            raise TelemetryError("--telemetry needs OpenTelemetry: pip install 'qstore[telemetry]'")
        if not parts.path.strip("/"):
            url = f"{url.rstrip('/')}/v1/traces"
        self._url = url
        self.lost = 0
        self._told = 0
        self._helper: Helper | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        self._own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._tracer = tick.tracer = Tracer(tick, limit, self._send, time.time_ns, lambda: secrets.token_hex(8))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the process, and look after deliveries that end without a settlement."""
        number = self._other.fileno()
        command = [sys.executable, "-m", __name__, str(number), self._url]
        self._helper, self._loop = Helper("exporter of traces", "telemetry", command, (number,)), loop
        self._sweep()
        _LOG.notice("Spans of sampled messages are sent to %s", self._url)

    def _sweep(self) -> None:
        assert self._loop is not None
        self._tracer.sweep()
        told = self.lost + self._tracer.limited
        if told != self._told and int(time.monotonic()) % int(_TOLD_SECONDS) == 0:
            _LOG.warning("%s not traced since the start: see --telemetry-limit", plural(told, "span"))
            self._told = told
        self._timer = self._loop.call_later(_SECONDS, self._sweep)

    def _send(self, spans: list[Span]) -> None:
        for begin in range(0, len(spans), PACKET):
            portion = spans[begin : begin + PACKET]
            try:
                self._own.send(dumps(portion, default=tuple))
            except (OSError, TypeError):  # full, or closed; or JSON has no form for it
                self.lost += len(portion)

    def close(self) -> None:
        """Send what is left, and end the process."""
        if self._helper is None:
            self._own.close()
            self._other.close()
            return
        self._timer.cancel()
        self._tracer.report_completed()
        self._helper.leave()
        self._own.close()
        self._other.close()
        self._helper.wait()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# ---- the process ----


class Exporter:
    """Exports spans.

    Args:
        url: the collector's.
    """

    def __init__(self, url: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "qstore"}
        self._url, self._resource = url, Resource.create(name)
        self._scope = InstrumentationScope("qstore")
        self._exporter = OTLPSpanExporter(url, timeout=_TIMEOUT_SECONDS)
        self._failed, self._told_at = 0, 0.0

    def export(self, spans: list[list[Any]]) -> None:
        """Export spans, as the broker sends them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._span(Span(*span)) for span in spans])
        except Exception as error:
            self._fail(len(spans), f": {error}")
            return
        if result is not SpanExportResult.SUCCESS:
            self._fail(len(spans), "")

    def _fail(self, count: int, why: str) -> None:
        """Say it once a minute."""
        self._failed += count
        if time.monotonic() - self._told_at > _TOLD_SECONDS or not self._told_at:
            what = plural(self._failed, "span")
            print(f"{what} could not be sent to {self._url}{why[:500]}", flush=True)  # noqa: T201 (to the log)
            self._failed, self._told_at = 0, time.monotonic()

    def _span(self, span: Span) -> Any:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

        state = TraceState.from_header([span.state]) if span.state else TraceState()
        flags = TraceFlags(TraceFlags.SAMPLED)
        trace = int(span.trace, 16)
        return ReadableSpan(
            span.name,
            SpanContext(trace, int(span.identity, 16), is_remote=False, trace_flags=flags, trace_state=state),
            SpanContext(trace, int(span.parent, 16), is_remote=True, trace_flags=flags, trace_state=state),
            self._resource,
            span.attributes,
            kind=SpanKind[span.kind],
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.begin,
            end_time=span.end,
        )

    def close(self) -> None:
        """Release what it holds."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def packets(source: socket.socket) -> Iterable[list[list[Any]]]:
    """The spans that come, in portions of at most `AT_ONCE` and about a second, until the broker has gone."""
    spans: list[list[Any]] = []
    end = 0.0
    while True:
        source.settimeout(None if not spans else max(end - time.monotonic(), 0.001))
        try:
            packet = source.recv(_MAX_PACKET)
        except TimeoutError:
            yield spans
            spans = []
            continue
        if not packet:
            break
        if not spans:
            end = time.monotonic() + _SECONDS
        spans += loads(packet)
        if len(spans) >= AT_ONCE:
            yield spans
            spans = []
    if spans:
        yield spans


def main() -> None:
    """Export what comes over the socket with the number that is given, to the URL that follows."""
    import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the broker, which ends this process
    logging.disable(logging.CRITICAL)  # of the SDK, for each request
    exporter = Exporter(sys.argv[2])
    with contextlib.closing(exporter), socket.socket(fileno=int(sys.argv[1])) as source:
        for spans in packets(source):
            exporter.export(spans)


if __name__ == "__main__":
    main()
