"""qstore: an AMQP broker on a journaled message store.

    from qstore import Connection, Message

    with Connection("localhost:5672") as connection:
        connection.session().sender("orders; {create: always}").send(Message("hello", durable=True))

This is the blocking client. `qstore.aio` is the same for asyncio, `qstore.store` the message store without a broker,
`qstore.spark` stores as Spark tables. Anything else may change from one version to the next.

`broker`, `formats`, `store` and `tools` in this folder are symbolic links to the folders of these names, so that a
clone has the same packages as an installation. Names are imported on first use, so that commands start without loading
the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qstore.broker.client import *  # noqa: F403 – its __all__ is the one list of the public names

__version__ = "0.3.0"

_CLIENT = "qstore.broker.client"


def __getattr__(name: str) -> object:
    if not name.startswith("_"):
        client = importlib.import_module(_CLIENT)
        if name in client.__all__:
            return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *importlib.import_module(_CLIENT).__all__])
