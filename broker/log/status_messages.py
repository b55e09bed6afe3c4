"""The messages of the operational log: their ids, and their texts with places for values.

    BRK  the broker              CON  a connection      EXH  an exchange
    MNG  management              CHN  a session         BND  a binding
    VHT  the virtual host        QUE  a queue           SUB  a subscription
    MST  the message store

`status_log` writes them. Source: Qpid wiki, "Operational Logging" (seed 004, lines 6187-6294).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STATUS_MESSAGES: Final[Mapping[str, str]] = {
    "BRK-1001": "Startup : Version: {} Build: {}",
    "BRK-1002": "Starting : Listening on {} port {}",
    "BRK-1003": "Shutting down : {} port {}",
    "BRK-1004": "Ready",
    "BRK-1005": "Stopped",
    "BRK-1006": "Using configuration : {}",
    "BRK-1007": "Using logging configuration : {}",
    "MNG-1001": "Startup",
    "MNG-1002": "Starting : {} : Listening on port {}",
    "MNG-1003": "Shutting down : {} : port {}",
    "MNG-1004": "Ready",
    "MNG-1005": "Stopped",
    "MNG-1006": "Using SSL Keystore : {}",
    "VHT-1001": "Created : {}",
    "VHT-1002": "Closed",
    "MST-1001": "Created : {}",
    "MST-1002": "Store location : {}",
    "MST-1003": "Closed",
    "MST-1004": "Recovery Start{}",
    "MST-1005": "Recovered {} for queue {}",
    "MST-1006": "Recovery Complete{}",
    "CON-1001": "Open : Client ID {} : Protocol Version : {}",
    "CON-1002": "Close",
    "CHN-1001": "Create : Prefetch {}",
    "CHN-1002": "Flow {}",
    "CHN-1003": "Close",
    "QUE-1001": "Create : {}",
    "QUE-1002": "Deleted",
    "EXH-1001": "Create : {}Type:{} Name:{}",
    "EXH-1002": "Deleted",
    "BND-1001": "Create{}",
    "BND-1002": "Deleted",
    "SUB-1001": "Create{}",
    "SUB-1002": "Close",
}
