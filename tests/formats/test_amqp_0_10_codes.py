"""The enumerations of AMQP 0-10 against the specification."""

from __future__ import annotations

from enum import IntEnum

import pytest

from qstore.formats.amqp_0_10 import codes, frames
from tests.formats.amqp_0_10_specification import specification

ENUMERATIONS: dict[str, type[IntEnum]] = {
    "connection.close-code": codes.CloseCode,
    "session.detach-code": codes.DetachCode,
    "execution.error-code": codes.ErrorCode,
    "message.accept-mode": codes.AcceptMode,
    "message.acquire-mode": codes.AcquireMode,
    "message.reject-code": codes.RejectCode,
    "message.delivery-mode": codes.DeliveryMode,
    "message.delivery-priority": codes.DeliveryPriority,
    "message.flow-mode": codes.FlowMode,
    "message.credit-unit": codes.CreditUnit,
    "dtx.xa-status": codes.XaStatus,
    "file.return-code": codes.ReturnCode,
    "stream.return-code": codes.ReturnCode,
}

OF_FRAMES = {
    "segment-type": {
        "control": frames.CONTROL,
        "command": frames.COMMAND,
        "header": frames.HEADER,
        "body": frames.BODY,
    },
    "track": {"control": frames.TRACK_CONTROL, "command": frames.TRACK_COMMAND},
}


def test_every_choice_of_the_specification_is_there() -> None:
    assert set(ENUMERATIONS) | set(OF_FRAMES) == set(specification().choices)
    defined = {
        value for value in vars(codes).values() if isinstance(value, type) and value.__module__ == codes.__name__
    }
    assert defined == set(ENUMERATIONS.values())


@pytest.mark.parametrize("domain", ENUMERATIONS)
def test_names_and_numbers_are_the_specifications(domain: str) -> None:
    members = [(member.name.lower().replace("_", "-"), member.value) for member in ENUMERATIONS[domain]]
    assert members == list(specification().choices[domain].items())


def test_segment_types_tracks_and_the_smallest_maximum_are_the_specifications() -> None:
    for domain, numbers in OF_FRAMES.items():
        assert numbers == specification().choices[domain]
    assert specification().constants == {"MIN-MAX-FRAME-SIZE": frames.MIN_MAX_FRAME_SIZE}
