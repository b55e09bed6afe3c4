"""Text for people: counts, nouns with their articles, and names on one line."""

from __future__ import annotations


def plural(number: float, one: str, many: str = "") -> str:
    """A count with its noun: `1 queue`, `12,345 queues`.

    Args:
        number: the count.
        one: the noun in the singular.
        many: the plural; by default `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def with_article(noun: str) -> str:
    """A noun with its indefinite article: `a queue`, `an exchange`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def printable(text: str) -> str:
    """`text` on one line: unprintable characters are escaped as in Python.

    Between a virtual host and a name there is a slash (`formats.broker_records.topology.full_name`).
    """
    if text.isprintable():
        return text
    host, separator, name = text.partition("\x1f")
    if separator and host.isprintable() and name.isprintable():
        return f"{host}/{name}"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
