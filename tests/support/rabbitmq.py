"""Debian's RabbitMQ as a real process, on ports and in a directory of its own; stopped by its own command."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import PATIENCE_SECONDS

PROGRAMS: Final = Path("/usr/lib/rabbitmq/bin")
IS_INSTALLED: Final = (PROGRAMS / "rabbitmq-server").exists() and shutil.which("erl") is not None
NOT_INSTALLED: Final = "rabbitmq-server is not installed"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class RabbitMQ:
    """One node, with the plugins that are named.

    Attributes:
        name: of the node.
        port: of AMQP.
        management_port: of the HTTP API, if its plugin is on.
    """

    def __init__(self, directory: Path, *plugins: str) -> None:
        self.port, self.management_port, distribution, mapper = (_free_port() for _ in range(4))
        self.name = f"qstore-{uuid.uuid4().hex[:8]}@localhost"
        (directory / "enabled").write_text(f"[{','.join(plugins)}].")
        (directory / "rabbitmq.conf").write_text(
            f"management.tcp.port = {self.management_port}\nmanagement.tcp.ip = 127.0.0.1\n"
            "collect_statistics_interval = 200\n"
            if "rabbitmq_management" in plugins
            else ""
        )
        self._environment = {
            **os.environ,
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_BASE": str(directory),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none"),
        }
        self._log = directory / "output"

    def start(self) -> RabbitMQ:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(PROGRAMS / "rabbitmq-server")], env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip
        end = time.monotonic() + PATIENCE_SECONDS
        while self.ctl("await_startup", "--timeout", "60", check=False).returncode:
            assert time.monotonic() < end, self._log.read_text()
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.5)
        return self

    def ctl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run rabbitmqctl."""
        command = [str(PROGRAMS / "rabbitmqctl"), "-n", self.name, *words]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def stop(self) -> None:
        self.ctl("stop", check=False)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        subprocess.run(["epmd", "-kill"], env=self._environment, capture_output=True, check=False)


def one_rabbitmq(*plugins: str) -> Iterator[RabbitMQ]:
    """A fixture: a node, without plugins."""
    if not IS_INSTALLED:
        pytest.skip(NOT_INSTALLED)
    with tempfile.TemporaryDirectory(prefix="qstore-rabbitmq-", ignore_cleanup_errors=True) as name:
        node = RabbitMQ(Path(name), *plugins)
        try:
            yield node.start()
        finally:
            node.stop()
