"""Points in time as options of a command."""

from __future__ import annotations

from datetime import UTC, datetime

import click


class Moment(click.ParamType[int]):
    """Type of an option: a time in ISO 8601, or seconds since 1970. Without a zone it is in UTC."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds since 1970."""
        text = str(value)
        if text.isascii() and text.isdecimal():
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is neither a time like 2026-11-24T12:00:00Z nor seconds since 1970", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
