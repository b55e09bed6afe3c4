"""Backups at an S3-compatible server (moto, on loopback): made, continued after a kill, verified, restored."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import ROOT
from tests.tools.test_backup import backup, bytes_of, enqueue, made, refused, restore, store

__all__ = ["store"]


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server of its own."""
    # Here, and not when tests are collected: the packages take most of a second to import.
    pytest.importorskip("s3fs", reason="backups to S3 need s3fs: pip install -e '.[dev]'")
    pytest.importorskip("moto.server", reason="the S3 server of these tests is moto: pip install -e '.[dev]'")
    from boto3 import client
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in (
        ("AWS_ENDPOINT_URL", endpoint), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    client("s3", endpoint_url=endpoint).create_bucket(Bucket="bucket")
    yield "s3://bucket/backups"
    server.stop()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_store_at_s3(tmp_path: Path, store: Path, url: str) -> None:
    before = bytes_of(store)
    code = (
        "import sys, time, qstore.tools.backup_places as remote\n"
        "put, count = remote.RemoteRepository.put, []\n"
        "def stall(self, name, content):\n"
        "    put(self, name, content)\n"
        "    count.append(name)\n"
        "    if len(count) == 5:\n"
        "        print('stalled', flush=True)\n"
        "        time.sleep(600)\n"
        "remote.RemoteRepository.put = stall\n"
        "from qstore.tools.qstore_backup import main\nmain()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(store), url], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"stalled\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    refused(restore(url, tmp_path / "none"), "there is no backup")
    began = time.time()
    first = made(store, url, "--verify")
    assert first["written_bytes"] > 0
    assert first["new_bytes"] < first["bytes"]  # what was there before the kill was used
    assert first["created"] >= int(began)
    enqueue(store, "busy", "more")
    second = made(store, url)
    assert second["based_on"] == first["id"]
    assert restore(url, "--verify").exit_code == 0
    assert restore(url, tmp_path / "first", "--backup", first["id"]).exit_code == 0
    assert bytes_of(tmp_path / "first") == before
    kept = made(store, url, "--keep", "1")
    assert kept["removed"] == [first["id"], second["id"]]
    assert kept["removed_chunks"] > 0
    assert restore(url, tmp_path / "last").exit_code == 0
    assert bytes_of(tmp_path / "last") == bytes_of(store)
    refused(backup(store, "s3://no-such-bucket/x"), "no-such-bucket")
