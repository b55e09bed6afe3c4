"""The text of `--help`: every option with its default, including those of loaded modules."""

from __future__ import annotations

import textwrap
from typing import Final

from qstore.broker.process.options.lookup import Table
from qstore.broker.process.options.option import Effect, Option

_COLUMN: Final = 34
_WIDTH: Final = 100
_EFFECTS: Final = {
    Effect.WORKS: "",
    Effect.NOT_NEEDED: " (ignored: not needed by this broker)",
    Effect.LATER: " (ignored: not supported yet)",
    Effect.REPLACED: " (refused: see the other options)",
    Effect.REFUSED: " (refused: not supported yet)",
}


_EXAMPLES: Final = """\

Examples:
  qpidd --load-module store                            durable, in the foreground, on port 5672
  qpidd --load-module store --data-dir DIR --daemon    as a daemon; returns when it is listening
  qpidd --data-dir DIR --quit                          shut that broker down; --check prints its pid
  qpidd --load-module store --help                     show the store's options as well

Exit codes: 0 clean shutdown, or the command succeeded; 1 the shutdown was not clean, the command
failed, or the options are invalid."""


def help_text(table: Table) -> str:
    """The text of `--help`."""
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
