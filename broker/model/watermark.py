"""A number with its lowest and highest value in an interval, as QMF reports them.

Source: the QMF schema of qpidd's broker, types hilo8 to hilo64: the marks are set to the current value when an interval
begins.
"""

from __future__ import annotations


class Watermark:
    """A number with its low and high water marks.

    Attributes:
        value: the number.
        low, high: its lowest and highest value since the interval began.
    """

    __slots__ = ("high", "low", "value")

    def __init__(self, value: int = 0) -> None:
        self.value = self.low = self.high = value

    def __repr__(self) -> str:
        return f"<{self.value}, {self.low} to {self.high}>"

    def set(self, value: int) -> None:
        """Set the number."""
        self.value = value
        if value > self.high:
            self.high = value
        elif value < self.low:
            self.low = value

    def change(self, difference: int) -> None:
        """Add `difference` to the number."""
        self.set(self.value + difference)

    def begin_interval(self) -> None:
        """Reset the marks to the current value."""
        self.low = self.high = self.value
