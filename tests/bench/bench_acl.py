"""Cost of access rules: the broker's processor time for each message, with and without rules about publishing.

    python -m tests.bench.bench_acl [--directory PATH] [--seconds S] [--pairs N] [--size BYTES] [--durable]

Three brokers run beside each other, and are measured in turns: one without an ACL file, one whose rules are not about
publishing, and one that must check each message against a hundred rules, of which the last one matches. The ratios
are those of two measurements that follow each other; the median of them is printed, with the lowest and the highest.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Final

import click

from tests.bench.bench_broker import Generator
from tests.support.running_broker import RunningBroker

_OPTIONS: Final = ("--num-jfiles", "16", "--jfile-size-pgs", "64")
_FILES: Final = {
    "no ACL file": None,
    "rules, none about publishing": "acl deny all create link\nacl allow all all\n",
    "a hundred rules about publishing": "".join(
        f"acl deny all publish exchange name=amq.topic routingkey=secret.{number}.#\n" for number in range(99)
    )
    + "acl allow all publish exchange name=amq.default\nacl allow all all\n",
}


def _microseconds(broker: RunningBroker, seconds: float, options: list[str]) -> float:
    result = Generator(broker.port, seconds, broker.pid, options).result()
    return float(result["broker_cpu"] / result["messages"] * 1e6)


@click.command()
@click.option("--directory", type=click.Path(path_type=Path), default=Path("/var/tmp"), help="Where the data go.")
@click.option("--seconds", default=3.0, help="Of one measurement.")
@click.option("--pairs", default=9, help="Measurements of each broker.")
@click.option("--size", default=100, help="Bytes of a message.")
@click.option("--durable", is_flag=True, help="Durable messages.")
def main(*, directory: Path, seconds: float, pairs: int, size: int, durable: bool) -> None:
    """Measure what access rules cost."""
    load = ["--queues", "1", "--size", str(size), *(["--durable"] if durable else [])]
    with tempfile.TemporaryDirectory(prefix="qstore-bench-", dir=directory) as name:
        brokers = {}
        for number, (what, text) in enumerate(_FILES.items()):
            file = Path(name, f"{number}.acl")
            file.write_text(text or "")
            options = () if text is None else ("--acl-file", str(file))
            brokers[what] = RunningBroker(Path(name, str(number)), *_OPTIONS, *options)
        try:
            for broker in brokers.values():
                broker.start()
            taken: dict[str, list[float]] = {what: [] for what in brokers}
            for _ in range(pairs):
                for what, broker in brokers.items():
                    taken[what].append(_microseconds(broker, seconds, load))
        finally:
            for broker in brokers.values():
                broker.close()
    plain = taken["no ACL file"]
    for what, each in taken.items():
        ratios = [one / other for one, other in zip(each, plain, strict=True)]
        spread = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        click.echo(f"{what:34} {median(each):6.2f} us a message   {spread} of that without a file")


if __name__ == "__main__":
    main()
