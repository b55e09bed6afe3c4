"""How the wheel is built, and the wheel installed into a virtual environment, beside a user's files that have the names
of the rooms."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from hatchling.build import get_requires_for_build_wheel

import hatch_build
from tests.support.processes import PATIENCE_SECONDS
from tests.support.profiles import today
from tests.support.running_broker import BrokerMaker

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("broker", "formats", "store", "tools")
BUILD_SECONDS: Final = 600.0  # only what hangs takes longer, however busy the machine is
SCRIPTS: Final = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist, and the wheel that is built from it where there is no C compiler."""
    folder = tmp_path_factory.mktemp("distributions")
    environment = os.environ | {"CC": "/no/compiler", "QSTORE_PURE": ""}
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run([*build, "--target", "sdist"], cwd=ROOT, check=True, capture_output=True, timeout=BUILD_SECONDS)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    command = [*build, "--target", "wheel"]
    built = subprocess.run(
        command, cwd=source, env=environment, check=True, capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    assert "qstore is built in pure Python: there is no C compiler" in built.stderr
    return folder


@pytest.fixture(scope="module")
def installed(distributions: Path) -> Path:
    """A virtual environment with the wheel in it; what the wheel depends on is that of these tests."""
    folder = distributions / "venv"
    (wheel,) = distributions.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=BUILD_SECONDS)
    python = folder / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--ignore-installed", str(wheel)], check=True, capture_output=True, timeout=BUILD_SECONDS)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory whose files must neither be imported nor be in the way."""
    for room in ROOMS:
        (tmp_path / f"{room}.py").write_text("raise SystemExit('a file of the user was imported')\n")
    (tmp_path / "tests").mkdir()
    return tmp_path


def run(installed: Path, project: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    return subprocess.run(
        [str(installed / "bin" / words[0]), *words[1:]],
        cwd=project, env=variables, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS,
    )  # fmt: skip


def test_without_a_compiler_the_wheel_is_pure_and_for_every_platform(
    distributions: Path, installed: Path, project: Path
) -> None:
    (wheel,) = distributions.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    assert run(installed, project, "qpidd", "--version").stdout.endswith(" (pure Python)\n")


@pytest.mark.parametrize(
    ("pure", "reported"), today([("", "built in pure Python: compiling failed: "), ("0", "CompileError"), ("1", "")], 1)
)
def test_wheel_when_compiling_fails(tmp_path: Path, pure: str, reported: str) -> None:
    """A warning and a wheel in pure Python, an error, or not even an attempt."""
    broken = tmp_path / "broken"
    for name in ("hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    project = (ROOT / "pyproject.toml").read_text()
    one_of_them = 'modules = [\n    "qstore/broker/model/tick.py",\n]'
    few, count = re.subn(r"^modules = \[.*?^\]", one_of_them, project, count=1, flags=re.DOTALL | re.MULTILINE)
    assert count == 1
    (tmp_path / "pyproject.toml").write_text(few)
    shutil.copytree(ROOT / "qstore", tmp_path / "qstore", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "qstore" / "broker" / "model" / "tick.py").write_text("x: int = 'no number'\n")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(broken), "--target", "wheel"]
    environment = os.environ | {"QSTORE_PURE": pure}
    done = subprocess.run(
        build, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=BUILD_SECONDS
    )
    assert (done.returncode == 0) is (pure != "0")
    assert reported in done.stderr
    assert ("translating 2 modules to C" in done.stderr) is (pure != "1"), "that one, and the kernels"
    assert [path.name[-16:] for path in broken.glob("*.whl")] == ["py3-none-any.whl"] * (pure != "0")


def test_compiling_without_python_s_headers_is_not_attempted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", sys.executable)  # a program that is there
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert hatch_build.obstacle() == (
        f"there is no Python.h in {tmp_path} (Debian and Ubuntu have it in the package python3-dev)"
    )
    (tmp_path / "Python.h").touch()
    assert hatch_build.obstacle() == ""


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"QSTORE_PURE": "1"}, []),
        ({"CC": "/no/compiler"}, []),
        ({"CC": sys.executable}, [] if hatch_build.obstacle() else hatch_build.REQUIRED),
    ],
)
def test_only_compiled_wheels_need_the_compiler_s_packages(
    variables: dict[str, str], wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QSTORE_PURE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)
    assert get_requires_for_build_wheel() == wanted


def files_of_sizes(folder: Path, *sizes: int) -> list[str]:
    """Files with these sizes and names."""
    for size in sizes:
        (folder / f"{size}").write_bytes(bytes(size))
    return [str(folder / f"{size}") for size in sizes]


def test_files_of_one_extension_compile_in_parallel(tmp_path: Path) -> None:
    sources = files_of_sizes(tmp_path, 1, 3, 2, 4)
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)
    begun: list[str] = []
    compiled: list[int] = []

    def compile_file(source: str) -> list[str]:
        begun.append(source)
        both.wait()  # passes only when two are at it
        return [f"{source}.o"]

    with ThreadPoolExecutor(2) as pool:
        objects = hatch_build.compile_in_parallel(pool, compile_file, sources, lambda: compiled.append(1))
    assert objects == [f"{source}.o" for source in sources]
    assert {Path(source).name for source in begun[:2]} == {"4", "3"}
    assert len(compiled) == len(sources)


def test_no_file_is_begun_after_one_has_failed(tmp_path: Path) -> None:
    sources = files_of_sizes(tmp_path, *range(1, 20))
    begun: list[str] = []
    has_failed = threading.Event()

    def compile_file(source: str) -> list[str]:
        begun.append(source)
        if len(begun) > 1:  # the one worker has gone on before the failure was noticed
            has_failed.wait(PATIENCE_SECONDS)
        raise ValueError(source)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ValueError, match=r"/19$"):
            hatch_build.compile_in_parallel(pool, compile_file, sources, lambda: None)
        has_failed.set()
    assert len(begun) <= 2


def test_progress_is_a_line_for_each_tenth_of_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    progress = hatch_build.Progress()
    progress.begin(435, 2)
    for _ in range(435):
        progress.count()
    first, *tenths = capsys.readouterr().out.splitlines()
    assert first == "qstore: 0 s: compiling 435 C files on 2 processors"
    assert tenths[0] == "qstore: 0 s: compiled 44 of 435 C files (10 %)"
    assert tenths[-1] == "qstore: 0 s: compiled 435 of 435 C files (100 %)"
    assert len(tenths) == 10


def test_the_wheel_has_all_modules_in_one_package(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = {f"qstore/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert modules <= set(names)
    assert "qstore/py.typed" in names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"qstore", *(top for top in tops if top.endswith((".dist-info", ".data")))}


@pytest.mark.parametrize("script", today(SCRIPTS, 10))
def test_each_command_starts_beside_a_user_s_files(installed: Path, project: Path, script: str) -> None:
    shown = run(installed, project, script, "--help", PYTHONPATH=str(project))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "usage" in shown.stdout.lower()


def test_the_client_beside_a_user_s_files(installed: Path, project: Path, make_broker: BrokerMaker) -> None:
    code = "\n".join(
        (
            "import sys, qstore, qstore.aio, qstore.spark, qstore.store",
            "from qstore import Connection, Empty, Message",
            "assert qstore.__file__.startswith(sys.prefix), qstore.__file__",
            "qstore.store.MessageStore, qstore.spark.QstoreDataSource, qstore.aio.Connection",
            "assert not {'broker', 'formats', 'store', 'tools'} & set(sys.modules)",
            "with Connection(sys.argv[1]) as connection:",
            "    session = connection.session()",
            "    session.sender('q; {create: always}').send(Message('hello'))",
            f"    print(session.receiver('q').fetch(timeout={PATIENCE_SECONDS}).content)",
        )
    )
    broker = make_broker()
    broker.program = (str(installed / "bin" / "qpidd"),)
    broker.start()
    done = run(installed, project, "python", "-c", code, f"127.0.0.1:{broker.port}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert broker.stop() == 0
