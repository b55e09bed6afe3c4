"""Compiles the modules that each message passes through, when a wheel is built: with mypyc, from the same sources.

The kernels (`formats/kernels`), which work on bytes in bulk, are compiled by Cython, from a source beside the one in
Python.

The wheel then holds the compiled modules beside their sources, and is for one version of Python and one platform. It is
in pure Python, and for all, if there is no C compiler or no `Python.h`, if compiling fails, or if the environment has
`QSTORE_PURE=1`; `QSTORE_PURE=0` makes a failure to compile an error. An editable install is always in pure Python.

mypyc makes one C file of each module, and one shared library of all of them, beside a small extension for each module;
Cython makes an extension of one C file. setuptools compiles extensions in parallel, but the files of one extension one
after the other. Here the files of all extensions share one pool of as many compilers as there are processors.

`compile_modules` runs this file as a program for that: mypyc and setuptools need the process for themselves, with its
working directory, its output and its exit code.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE: Final = "qstore"
VARIABLE: Final = "QSTORE_PURE"
REQUIRED: Final = ["cython>=3.1", "mypy>=2.4", "setuptools>=65"]
"""What compiling needs besides hatchling; a wheel in pure Python is built without them."""

_PROGRESS: Final = "qstore: "
"""The prefix of those lines of the compiling process that are shown to the user."""
_CYTHON: Final = ".pyx"  # what the names of Cython's modules end with
_SLOTS: Final = re.compile(r"^(@dataclass\(.*?)(?:, )?slots=True(?:, )?(.*\))$", re.MULTILINE)
"""Compiled classes have slots in any case, and those of dataclasses cannot be compiled."""


class CompileError(Exception):
    """The modules cannot be compiled."""


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    def dependencies(self) -> list[str]:
        """As `BuildHookInterface.dependencies`."""
        return [] if os.environ.get(VARIABLE) == "1" or obstacle() else REQUIRED

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """As `BuildHookInterface.initialize`."""
        wanted = os.environ.get(VARIABLE, "")
        if version == "editable" or wanted == "1":
            return
        if why := obstacle():
            self._tell_pure(why, wanted)
            return
        self._folder = tempfile.mkdtemp(prefix="qstore-build-")
        try:
            patterns = [*self.config["modules"], *self.config["kernels"]]
            compiled = compile_modules(Path(self.root), patterns, Path(self._folder), self.app.display_info)
        except CompileError as error:
            shutil.rmtree(self._folder)
            self._tell_pure(str(error), wanted)
            return
        build_data["force_include"].update(compiled)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        self.app.display_info(f"qstore is built with {len(compiled)} compiled modules")

    def _tell_pure(self, why: str, wanted: str) -> None:
        if wanted == "0":
            raise CompileError(why)
        self.app.display_warning(f"qstore is built in pure Python: {why}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """As `BuildHookInterface.finalize`."""
        if folder := getattr(self, "_folder", ""):
            shutil.rmtree(folder, ignore_errors=True)


def obstacle() -> str:
    """Why nothing can be compiled here: no C compiler (the one that setuptools would call), or no headers of Python."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which(shlex.split(command)[0]) is None:
        return "there is no C compiler"
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        return f"there is no Python.h in {headers} (Debian and Ubuntu have it in the package python3-dev)"
    return ""


def modules_to_compile(root: Path, patterns: list[str]) -> list[str]:
    """The files that the patterns name, from the root."""
    found = {path for pattern in patterns for path in root.glob(pattern) if path.name != "__init__.py"}
    return sorted(str(path.relative_to(root)) for path in found)


def compile_modules(root: Path, patterns: list[str], folder: Path, say: Callable[[str], object]) -> dict[str, str]:
    """Compile modules in a new folder, reporting progress. Returns extension module -> its place in the wheel."""
    modules = modules_to_compile(root, patterns)
    shutil.copytree(root / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for module in modules:
        path = folder / module
        path.write_text(_SLOTS.sub(r"\1\2", path.read_text()))
    lines = []
    command = [sys.executable, __file__, *modules]
    with subprocess.Popen(  # noqa: S603
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith(_PROGRESS):
                say(line.removeprefix(_PROGRESS).rstrip())
            else:
                lines.append(line.rstrip())
    if process.returncode:
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise CompileError(f"compiling failed: {errors[-1] if errors else f'exit code {process.returncode}'}")
    return {str(path): str(path.relative_to(folder)) for path in (folder / PACKAGE).rglob("*.so")}


def build_extensions(modules: list[str]) -> None:
    """Compile modules in the working directory, each to an extension module beside it: with Cython if they are its."""
    from Cython.Build import cythonize  # not installed where nothing is compiled
    from mypyc.build import mypycify
    from setuptools import Extension, setup
    from setuptools.command.build_ext import build_ext

    progress = Progress()
    progress.say(f"translating {len(modules)} modules to C")
    kernels = [module for module in modules if module.endswith(_CYTHON)]
    options = ["--config-file=", "--ignore-missing-imports", *(each for each in modules if each not in kernels)]
    extensions = mypycify(options, opt_level="2", debug_level="0", multi_file=True, group_name=f"{PACKAGE}.all")
    for extension in extensions:
        extension.include_dirs.append(f"build/{PACKAGE}")  # where mypyc puts the header of the group
        # 14,000 functions are called by each other only: as names that other libraries may look for, and replace, they
        # take 1.6 MiB of memory, 21,000 look-ups when the library is loaded, and a detour at each call.
        extension.extra_compile_args = [*extension.extra_compile_args, "-fvisibility=hidden"]  # it is all extensions'
    extensions += cythonize(
        [
            Extension(kernel.removesuffix(_CYTHON).replace("/", "."), [kernel], extra_compile_args=["-O2", "-g0"])
            for kernel in kernels
        ],
        build_dir="build",
        quiet=True,
    )
    processors = len(os.sched_getaffinity(0))
    progress.begin(sum(len(extension.sources) for extension in extensions), processors)

    class BuildInParallel(build_ext):
        def build_extensions(self) -> None:
            compile_files = self.compiler.compile
            with ThreadPoolExecutor(processors) as pool:
                self.compiler.compile = lambda sources, **more: compile_in_parallel(
                    pool, lambda source: compile_files([source], **more), sources, progress.count
                )
                super().build_extensions()

    setup(
        name=PACKAGE,
        packages=[],
        ext_modules=extensions,
        cmdclass={"build_ext": BuildInParallel},
        # One thread waits for the files of the shared library; the others hand in, and link, the small extensions.
        script_args=["build_ext", "--inplace", f"--parallel={processors + 1}"],
    )


def compile_in_parallel(
    pool: Executor, compile_file: Callable[[str], list[str]], sources: list[str], count: Callable[[], object]
) -> list[str]:
    """Compile files, the largest first: no processor idles at the end. Returns the objects in the files' order."""

    def compile_and_count(source: str) -> list[str]:
        objects = compile_file(source)
        count()
        return objects

    ordered = sorted(sources, key=os.path.getsize, reverse=True)
    futures = {source: pool.submit(compile_and_count, source) for source in ordered}
    try:
        for future in as_completed(futures.values()):
            future.result()
    finally:
        for future in futures.values():
            future.cancel()  # when a file has failed, those that have not begun
    return [each for source in sources for each in futures[source].result()]


class Progress:
    """Prints a line at each tenth of the files."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._files = 0
        self._compiled = 0
        self._lock = threading.Lock()

    def begin(self, files: int, processors: int) -> None:
        self._files = files
        self.say(f"compiling {files} C files on {processors} processors")

    def count(self) -> None:
        """One more file is compiled."""
        with self._lock:
            self._compiled += 1
            tenths = 10 * self._compiled // self._files
            if tenths > 10 * (self._compiled - 1) // self._files:
                self.say(f"compiled {self._compiled} of {self._files} C files ({10 * tenths} %)")

    def say(self, text: str) -> None:
        """Print a line, with the seconds since the start."""
        print(f"{_PROGRESS}{time.monotonic() - self._started:.0f} s: {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    build_extensions(sys.argv[1:])
