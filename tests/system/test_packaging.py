"""Files installed besides the commands: an example of a configuration file, a systemd unit, a container file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from qstore.broker.process.modules import load_store, options_of
from qstore.broker.process.option_table import GROUPS, Effect, Option, Source
from qstore.broker.process.options import DEFAULT_FILE, Table, Values, open_sources, read_environment, read_sources
from qstore.broker.process.plan import StartPlan, make_plan, settings_of

ROOT: Final = Path(__file__).parents[2]
PACKAGING: Final = ROOT / "tools" / "packaging"
CONF: Final = PACKAGING / "qpidd.conf"
UNIT: Final = PACKAGING / "qpidd.service"
CONTAINER: Final = PACKAGING / "Containerfile"
INSTALLED: Final = "/opt/qstore/bin/qpidd"


@pytest.fixture
def table() -> Table:
    module = load_store(["store"])
    assert module is not None
    return Table((*GROUPS, options_of(module).group))


def test_the_wheel_has_them() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    shared = {f"qstore/tools/packaging/{path.name}": f"share/qstore/{path.name}" for path in PACKAGING.iterdir()}
    assert wheel["shared-data"] == shared
    assert len(shared) == 5


# ---- the configuration file ----


def test_the_example_as_it_is_changes_nothing() -> None:
    plan = make_plan(["--config", str(CONF)], {})
    assert settings_of(plan.values, None) == settings_of(make_plan([], {}).values, None)
    assert (plan.module, plan.warnings) == (None, [])


def is_for_a_file(option: Option) -> bool:
    return Source.FILE in option.sources and option.effect is Effect.WORKS and "(not needed here" not in option.help


def test_the_example_has_every_option_with_its_default(table: Table, tmp_path: Path) -> None:
    lines = [line[1:] for line in CONF.read_text().splitlines() if re.match("#[^ ]", line)]
    file = tmp_path / "qpidd.conf"
    file.write_text("\n".join(lines))
    said = read_sources(open_sources(["--config", str(file)], {}), table)
    assert said.warnings == []
    values = Values(table, said.given)
    values.check()
    options = [option for group in table.groups for option in group.options if is_for_a_file(option)]
    assert [line.partition("=")[0] for line in lines] == [option.name for option in options]
    for option in options:
        if option.default:
            assert values.texts(option.name) == (option.default,)


# ---- the unit ----


def unit_values(name: str) -> list[str]:
    """What the unit says for a name, in order."""
    return [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith(f"{name}=")]


def test_the_unit_starts_a_broker_that_keeps_messages(tmp_path: Path) -> None:
    (command,) = unit_values("ExecStart")
    program, *words = shlex.split(command)
    assert program == INSTALLED
    assert words[words.index("--config") + 1] == DEFAULT_FILE
    words[words.index("--config") + 1] = str(CONF)
    plan = make_plan(words, {})
    assert plan.module is not None
    assert not plan.is_daemon
    assert plan.data_directory == f"/var/lib/{unit_values('StateDirectory')[0]}"
    assert unit_values("Type") == ["notify"]  # service_manager
    assert unit_values("User") == ["qpidd"]
    assert unit_values("KillMode") == ["mixed"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(INSTALLED, sys.executable))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=sometimes"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "kill mode" in checked.stderr


# ---- the container ----


def instructions() -> list[tuple[str, str]]:
    """The container file's instructions, in order; lines that go on are joined."""
    text = re.sub(r"^#.*\n", "", CONTAINER.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def container_plan(*words: str) -> StartPlan:
    """What the container's broker does with these words behind the image's name."""
    variables = dict(part.split("=", 1) for word, rest in instructions() if word == "ENV" for part in shlex.split(rest))
    (entry,) = (rest for word, rest in instructions() if word == "ENTRYPOINT")
    program, *own = json.loads(entry)
    assert program == INSTALLED
    assert read_environment(variables)
    return make_plan(["--config", str(CONF), *own, *words], variables)


def test_the_container_s_broker_listens_outside_and_keeps_messages() -> None:
    plan = container_plan()
    settings = settings_of(plan.values, plan.data_directory)
    found = dict(instructions())
    assert plan.module is not None
    assert settings.interfaces == ("0.0.0.0",)
    assert settings.data_directory == found["VOLUME"] == found["WORKDIR"]
    assert str(settings.port) == found["EXPOSE"]
    assert found["USER"].isdecimal()
    assert found["USER"] != "0"
    assert json.loads(found["HEALTHCHECK"].partition("CMD ")[2]) == [INSTALLED, "--check"]


def test_a_file_that_asks_for_a_daemon_does_not_get_one(tmp_path: Path) -> None:
    """`daemon=yes` is in examples (Qpid C++ Broker Book, 1.1.3.3); neither systemd nor a container has use for it."""
    old = tmp_path / "qpidd.conf"
    old.write_text("daemon=yes\n")
    (command,) = unit_values("ExecStart")
    variables = dict(part.split("=", 1) for word, rest in instructions() if word == "ENV" for part in shlex.split(rest))
    for arguments, given in ((shlex.split(command)[1:], {}), (["--config", ""], variables)):
        arguments[arguments.index("--config") + 1] = str(old)
        assert not make_plan(arguments, given).is_daemon


def test_words_behind_the_image_s_name_are_options() -> None:
    plan = container_plan("--interface", "::", "--num-jfiles=4", "--user-file", "/etc/qstore/users")
    settings = settings_of(plan.values, plan.data_directory)
    assert (settings.interfaces, settings.user_file) == (("::",), "/etc/qstore/users")
    assert plan.module_values == {"num-jfiles": "4"}


def test_files_copied_into_the_container_exist() -> None:
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    names = {name for names in copied for name in names}
    assert all((ROOT / name).exists() for name in names)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    rooms = {str(path.readlink()).rpartition("/")[2] for path in (ROOT / "qstore").iterdir() if path.is_symlink()}
    assert names == {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", *wheel["packages"], *rooms}
