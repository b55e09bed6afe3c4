"""Compiles the modules that each message passes through, when a wheel is built: with mypyc, from the same sources.

The wheel then holds the compiled modules beside their sources, and is for one version of Python and one platform. It is
in pure Python, and for all, if there is no C compiler, if compiling fails, or if the environment has `QSTORE_PURE=1`;
`QSTORE_PURE=0` makes a failure to compile an error. An editable install is always in pure Python.
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
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE: Final = "qstore"
VARIABLE: Final = "QSTORE_PURE"

_SETUP: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup
options = ["--config-file=", "--ignore-missing-imports"]
modules = mypycify([*options, *sys.argv[1:]], opt_level="2", debug_level="0", multi_file=True, group_name="qstore.all")
for module in modules:
    module.include_dirs.append("build/qstore")  # where mypyc puts the header of the group
setup(name="qstore", packages=[], ext_modules=modules, script_args=["build_ext", "--inplace", "--parallel=%d"])
"""
_SLOTS: Final = re.compile(r"^(@dataclass\(.*?)(?:, )?slots=True(?:, )?(.*\))$", re.MULTILINE)
"""Compiled classes have slots in any case, and those of dataclasses cannot be compiled."""


class CompileError(Exception):
    """The modules cannot be compiled."""


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """As `BuildHookInterface.initialize`."""
        wanted = os.environ.get(VARIABLE, "")
        if version == "editable" or wanted == "1":
            return
        if not has_compiler():
            self._tell_pure("there is no C compiler", wanted)
            return
        self._folder = tempfile.mkdtemp(prefix="qstore-build-")
        try:
            compiled = compile_modules(Path(self.root), self.config["modules"], Path(self._folder))
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


def has_compiler() -> bool:
    """Whether there is the C compiler that setuptools would call."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(shlex.split(command)[0]) is not None


def modules_to_compile(root: Path, patterns: list[str]) -> list[str]:
    """The files that the patterns name, from the root."""
    found = {path for pattern in patterns for path in root.glob(pattern) if path.name != "__init__.py"}
    return sorted(str(path.relative_to(root)) for path in found)


def compile_modules(root: Path, patterns: list[str], folder: Path) -> dict[str, str]:
    """Compile modules in a new folder. Returns extension module -> its place in the wheel."""
    modules = modules_to_compile(root, patterns)
    shutil.copytree(root / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for module in modules:
        path = folder / module
        path.write_text(_SLOTS.sub(r"\1\2", path.read_text()))
    command = [sys.executable, "-c", _SETUP % (os.cpu_count() or 1), *modules]
    done = subprocess.run(  # noqa: S603
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if "error" in line.lower()] or done.stdout.splitlines()
        raise CompileError(f"compiling failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return {str(path): str(path.relative_to(folder)) for path in (folder / PACKAGE).rglob("*.so")}
