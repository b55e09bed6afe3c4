"""One sync for many files: the helper's side of a request that many files came with."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from qstore.store.sync import helper
from tests.support.sync_files import FileMaker, PipeFile


@pytest.fixture
def own_files(make_files: FileMaker) -> list[int]:
    return [file.fileno() for file in make_files(40)]


def test_many_files_of_an_ext4_are_synced_at_once(own_files: list[int], tmp_path: Path) -> None:
    name = subprocess.run(["df", "--output=fstype", tmp_path], capture_output=True, check=True, text=True).stdout
    expected = [0] * 40 if name.split()[-1] == "ext4" else None
    assert helper.FileSystemSync().sync(own_files) == expected


def test_files_of_several_file_systems_are_not(own_files: list[int], pipe_file: PipeFile) -> None:
    assert helper.FileSystemSync().sync([*own_files, pipe_file.fileno()]) is None


@pytest.mark.parametrize(
    ("release", "tells"), [("4.19.0", False), ("5.7.9-x", False), ("5.8-rc1", True), ("6.1", True)]
)
def test_a_kernel_whose_syncfs_tells_no_errors_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, pipe_file: PipeFile, release: str, tells: bool
) -> None:
    monkeypatch.setattr(helper, "file_system_kind", lambda device: "ext4")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", release, "", "")))
    assert (helper.FileSystemSync().sync([pipe_file.fileno()]) is not None) == tells


def test_each_file_is_asked_for_its_own_error(monkeypatch: pytest.MonkeyPatch, pipe_file: PipeFile) -> None:
    """A pipe's file system can be synced, the pipe itself has nothing to ask: ESPIPE."""
    monkeypatch.setattr(helper, "file_system_kind", lambda device: "ext4")
    assert helper.FileSystemSync().sync([pipe_file.fileno()] * 2) == [errno.ESPIPE] * 2


def test_after_a_failed_syncfs_each_file_is_synced_by_itself(
    monkeypatch: pytest.MonkeyPatch, own_files: list[int]
) -> None:
    monkeypatch.setattr(helper, "file_system_kind", lambda device: "ext4")
    at_once = helper.FileSystemSync()
    monkeypatch.setattr(at_once, "_libc", SimpleNamespace(syncfs=lambda descriptor: -1))
    assert at_once.sync(own_files) is None


def test_a_file_system_that_cannot_be_synced_at_once_is_synced_file_by_file(
    monkeypatch: pytest.MonkeyPatch, make_files: FileMaker, pipe_file: PipeFile
) -> None:
    """The helper's side alone, in this process, as on a file system that is not ext4."""
    asked: list[int] = []

    def sync_file(descriptor: int) -> int:
        asked.append(descriptor)
        return 0

    monkeypatch.setattr(helper, "sync_file", sync_file)
    monkeypatch.setattr(helper.FileSystemSync, "sync", lambda _, descriptors: None)
    descriptors = [file.fileno() for file in make_files(100)]
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        assert helper.Helper(far).sync(descriptors) == [0] * 100
    assert sorted(asked) == sorted(descriptors)
