"""The steps of the process in the operational log, in this order.

    BRK-1006, BRK-1007   the configuration file, if there is one; the options of the log are in it
    BRK-1001             version, and how it was built
    MNG-1001, MNG-1006   management, and its certificate; all MNG only if management is on
    VHT-1001             the virtual host
    MST-1001, MST-1002   the store and its location; then its recovery, from the model; all MST only if there is a store
    EXH-1001             each exchange
    BRK-1002, MNG-1002   each port
    MNG-1004, BRK-1004   ready
    BRK-1003, MNG-1003   each port is closed
    MST-1003, VHT-1002   closed
    MNG-1005, BRK-1005   stopped

Source: Qpid wiki, "Operational Logging" and its test specification (seed 004, lines 6187-8815).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qstore.broker.log.status_log import StatusLog
    from qstore.broker.model.exchanges.exchange import Exchange
    from qstore.broker.settings import BrokerSettings

_AGENT: Final = "QMF agent"
_DEFAULT_EXCHANGE: Final = "<<default>>"


class LifeStatus:
    """Writes the steps of one broker's process.

    Args:
        log: the operational log.
        settings: of the broker.
    """

    def __init__(self, log: StatusLog, settings: BrokerSettings) -> None:
        self._log, self._settings = log, settings
        self._listening: Mapping[int, str] = {}

    def starting(self, version: str, build: str, configuration: str) -> None:
        """The process starts; `configuration` is the path of its configuration file, empty if there is none."""
        if configuration:
            self._log.write("BRK-1006", configuration)
            self._log.write("BRK-1007", configuration)
        self._log.write("BRK-1001", version, build)
        if self._settings.management:
            self._log.write("MNG-1001")
            if self._settings.tls is not None:
                self._log.write("MNG-1006", self._settings.tls.certificate_file)
        self._log.host("VHT-1001", "/")

    def store_opened(self, name: str, location: object) -> None:
        """The store is open, and will be recovered."""
        self._log.store("MST-1001", name)
        self._log.store("MST-1002", location)

    def exchanges(self, exchanges: Iterable[Exchange]) -> None:
        """These exchanges are there at the start."""
        for each in exchanges:
            self._log.exchange(each.type_name, each.name or _DEFAULT_EXCHANGE, durable=each.durable)

    def ready(self, listening: Mapping[int, str]) -> None:
        """Clients can connect. `listening` has the transports of each port, such as TCP and TCP/SSL."""
        self._listening = listening
        for port, transport in listening.items():
            self._log.write("BRK-1002", transport, port)
        if self._settings.management:
            for port in listening:
                self._log.write("MNG-1002", _AGENT, port)
            self._log.write("MNG-1004")
        self._log.write("BRK-1004")

    def stopping(self) -> None:
        """No client can connect any more."""
        for port, transport in self._listening.items():
            self._log.write("BRK-1003", transport, port)
        if self._settings.management:
            for port in self._listening:
                self._log.write("MNG-1003", _AGENT, port)

    def stopped(self, *, has_store: bool) -> None:
        """Everything is closed."""
        if has_store:
            self._log.store("MST-1003")
        self._log.host("VHT-1002")
        if self._settings.management:
            self._log.write("MNG-1005")
        self._log.write("BRK-1005")
