"""What a replay did, or would do, as text and as JSON."""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

import click

from qstore.formats.wording import plural
from qstore.store.importing.ledger import PastImport
from qstore.tools.console.json_lines import JsonLines
from qstore.tools.console.text import printable
from qstore.tools.replay.choice import Choice, Replayed


class ReplayReport(NamedTuple):
    """A replay.

    Attributes:
        choice: what was asked for.
        replayed: what was read.
        where: the store or the broker.
        past: when it took place before; None if it did not.
        dry_run: whether it was only planned.
        left_out: number of messages that could not be sent.
        seconds: what it took.
    """

    choice: Choice
    replayed: Replayed
    where: str
    past: PastImport | None
    dry_run: bool
    left_out: int
    seconds: float

    def show_json(self) -> None:
        """Print it as a JSON line."""
        rids = [rid or None for rid in (self.replayed.rids[:1] + self.replayed.rids[-1:])]
        output = JsonLines(sys.stdout.buffer)
        output.show(
            {
                "kind": "replay",
                "queue": self.choice.queue,
                "destination": self.choice.target,
                "replayed": self.past is None and not self.dry_run,
                "replayed_before": None if self.past is None else self.past.at,
                "dry_run": self.dry_run,
                "messages": self.replayed.messages,
                "first_rid": rids[0],
                "last_rid": rids[1],
                "expired": self.replayed.expired,
                "messages_left_out": self.left_out,
            }
        )
        output.flush()

    def show(self) -> None:
        """Print it as text."""
        replayed, where = self.replayed, printable(self.where)
        count, queue, target = plural(replayed.messages, "message"), self.choice.queue, self.choice.target
        if self.past is not None:
            at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.past.at))
            text = (
                f"{count} were put on queue {printable(target)} of {where} at {at}; --again puts them there once more"
            )
            click.echo(f"nothing to do: {text}")
            return
        first, last = replayed.rids[0], replayed.rids[-1]
        rids = f", record 0x{first:x} to 0x{last:x}," if first and last else ""
        text = f"{count} of queue {printable(queue)}{rids} {{}} on queue {printable(target)} of {where}"
        if self.dry_run:
            click.echo(text.format("would be put") + "; nothing was written")
        else:
            click.echo(text.format("put") + f" in {self.seconds:.1f} s")
