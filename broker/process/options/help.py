"""What `--help` shows: every option with its default, and those of the modules that are loaded."""

from __future__ import annotations

import textwrap
from typing import Final

from broker.process.options.lookup import Table
from broker.process.options.option import Effect, Option

_COLUMN: Final = 34
_WIDTH: Final = 100
_EFFECTS: Final = {
    Effect.WORKS: "",
    Effect.NOT_NEEDED: " (not needed here, and without effect)",
    Effect.LATER: " (without effect yet)",
    Effect.REFUSED: " (refused: not to be had yet)",
}


_EXAMPLES: Final = """\

Examples:
  qpidd --load-module store                            durable, in the foreground, on port 5672
  qpidd --load-module store --data-dir DIR --daemon    as a daemon; returns when it listens
  qpidd --data-dir DIR --quit                          ends that broker; --check says its process id
  qpidd --load-module store --help                     shows the store's options, too

Exit codes: 0 it was closed cleanly, or what was asked for was done; 1 it was not, or the options
cannot be used."""


def help_text(table: Table) -> str:
    """What `--help` prints."""
    lines = ["Usage: qpidd OPTIONS"]
    for group in table.groups:
        lines += ["", f"{group.title}:"]
        for option in group.options:
            lines += _help_lines(option)
    return "\n".join([*lines, _EXAMPLES])


def _help_lines(option: Option) -> list[str]:
    left = f"  -{option.short} [ --{option.name} ]" if option.short else f"  --{option.name}"
    left += f" {option.value}" if option.value else ""
    left += f" ({option.default})" if option.default else ""
    text = option.help + _EFFECTS[option.effect]
    text += f" (also --{option.alias})" if option.alias else ""
    text += f" (--{option.opposite}: the opposite)" if option.opposite else ""
    wrapped = textwrap.wrap(text, _WIDTH - _COLUMN)
    beside = len(left) < _COLUMN - 1
    lines = [left.ljust(_COLUMN) + wrapped.pop(0)] if beside else [left]
    return lines + [" " * _COLUMN + line for line in wrapped]
