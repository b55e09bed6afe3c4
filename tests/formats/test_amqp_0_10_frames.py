"""Frames of AMQP 0-10: their bytes, how segments are split over them, and bytes that are not a frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstore.formats.amqp_0_10 import frames
from qstore.formats.amqp_0_10.frames import (
    FRAME,
    Frame,
    decode_frame,
    encode_command_frames,
    encode_control_frame,
    encode_frame,
)
from qstore.formats.amqp_0_10.types import Amqp010Error

PAYLOADS = st.binary(max_size=300)
CHANNELS = st.integers(0, 0xFFFF)
# connection.heartbeat on channel 0
HEARTBEAT = bytes.fromhex("0f00 0010 00 00 0000 00000000 010a 0000".replace(" ", ""))


def decode_all(raw: bytes) -> list[Frame]:
    found, offset = [], 0
    while offset < len(raw):
        frame = decode_frame(raw, offset)
        assert frame is not None
        found.append(frame)
        offset += FRAME.size + len(frame.payload)
    return found


def test_the_protocol_header_is_that_of_0_10() -> None:
    assert bytes.fromhex("414d5150 01 01 00 0a".replace(" ", "")) == frames.PROTOCOL_HEADER


def test_a_control_is_one_whole_frame_on_track_0() -> None:
    assert encode_control_frame(0, HEARTBEAT[12:]) == HEARTBEAT
    assert decode_frame(HEARTBEAT) == Frame(frames.WHOLE, frames.CONTROL, frames.TRACK_CONTROL, 0, HEARTBEAT[12:])


def test_a_command_with_content_is_three_segments_on_track_1() -> None:
    encoded = encode_command_frames(0x0102, b"command", b"header", b"body", 4096)
    assert [frame.hex(" ") for frame in encoded] == [
        "0b 01 00 13 00 01 01 02 00 00 00 00 " + b"command".hex(" "),
        "03 02 00 12 00 01 01 02 00 00 00 00 " + b"header".hex(" "),
        "07 03 00 10 00 01 01 02 00 00 00 00 " + b"body".hex(" "),
    ]


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        (None, None, [(0x0F, frames.COMMAND)]),
        (b"h", None, [(0x0B, frames.COMMAND), (0x07, frames.HEADER)]),
        (b"", None, [(0x0B, frames.COMMAND), (0x07, frames.HEADER)]),
        (b"h", b"", [(0x0B, frames.COMMAND), (0x03, frames.HEADER), (0x07, frames.BODY)]),
        (None, b"b", [(0x0B, frames.COMMAND), (0x07, frames.BODY)]),
    ],
)
def test_the_last_segment_that_is_there_is_marked(
    header: bytes | None, body: bytes | None, expected: list[tuple[int, int]]
) -> None:
    found = decode_all(b"".join(encode_command_frames(1, b"c", header, body, 4096)))
    assert [(frame.flags, frame.segment_type) for frame in found] == expected


@given(PAYLOADS, st.none() | PAYLOADS, st.none() | PAYLOADS, CHANNELS, st.integers(13, 100))
def test_split_segments_come_back(
    command: bytes, header: bytes | None, body: bytes | None, channel: int, max_frame: int
) -> None:
    encoded = encode_command_frames(channel, command, header, body, max_frame)
    assert max(map(len, encoded)) <= max_frame
    found = [decode_all(frame) for frame in encoded]
    assert all(len(frames_of_one) == 1 for frames_of_one in found)
    segments: list[tuple[int, bytes]] = []
    for (frame,) in found:
        assert (frame.channel, frame.track) == (channel, frames.TRACK_COMMAND)
        assert bool(frame.flags & frames.FIRST_SEGMENT) == (frame.segment_type == frames.COMMAND)
        assert bool(frame.flags & frames.LAST_SEGMENT) == (frame.segment_type == found[-1][0].segment_type)
        if frame.flags & frames.FIRST_FRAME:
            segments.append((frame.segment_type, b""))
        segment_type, content = segments[-1]
        assert segment_type == frame.segment_type
        segments[-1] = segment_type, content + frame.payload
    wanted = [(frames.COMMAND, command), (frames.HEADER, header), (frames.BODY, body)]
    assert segments == [segment for segment in wanted if segment[1] is not None]
    assert sum(bool(frame.flags & frames.LAST_FRAME) for (frame,) in found) == len(segments)


def test_segments_are_split_as_full_as_frames_may_be() -> None:
    encoded = encode_command_frames(0, b"c", None, bytes(10_000), 4096)
    assert [len(frame) for frame in encoded] == [13, 4096, 4096, 12 + 10_000 - 2 * (4096 - 12)]


@given(st.integers(0, 15), st.integers(0, 3), st.integers(0, 1), CHANNELS, PAYLOADS, PAYLOADS)
def test_frames_come_back_from_anywhere_in_a_buffer(
    flags: int, segment_type: int, track: int, channel: int, payload: bytes, before: bytes
) -> None:
    encoded = encode_frame(flags, segment_type, track, channel, payload)
    frame = Frame(flags, segment_type, track, channel, payload)
    assert decode_frame(before + encoded + before, len(before)) == frame


def test_the_largest_frame() -> None:
    encoded = encode_frame(frames.WHOLE, frames.BODY, 1, 0, bytes(65_523))
    assert len(encoded) == frames.MAX_FRAME_SIZE
    assert decode_frame(encoded) == Frame(frames.WHOLE, frames.BODY, 1, 0, bytes(65_523))


@pytest.mark.parametrize("length", range(len(HEARTBEAT)))
def test_an_incomplete_frame_is_not_decoded(length: int) -> None:
    assert decode_frame(HEARTBEAT[:length]) is None
    assert decode_frame(b"xyz" + HEARTBEAT[:length], 3) is None


@pytest.mark.parametrize(
    "head",
    [
        "0f 00 00 0b 00 00 00 00 00 00 00 00",  # smaller than its own header
        "0f 00 10 01 00 00 00 00 00 00 00 00",  # 4,097 bytes
        "1f 00 00 10 00 00 00 00 00 00 00 00",  # a version or flag that does not exist
        "0f 04 00 10 00 00 00 00 00 00 00 00",  # segment type 4
        "0f 00 00 10 01 00 00 00 00 00 00 00",  # reserved bytes
        "0f 00 00 10 00 00 00 00 00 00 00 01",
        "0f 00 00 10 00 02 00 00 00 00 00 00",  # track 2
        "41 4d 51 50 01 01 00 0a 00 00 00 00",  # a second protocol header
    ],
)
def test_invalid_frame_is_refused_at_its_header(head: str) -> None:
    with pytest.raises(Amqp010Error) as caught:
        decode_frame(b"--" + bytes.fromhex(head), 2, max_frame=4096)
    assert caught.value.offset == 2


def test_content_that_fits_no_frame_is_refused() -> None:
    for flags, channel, payload in ((15, 0, bytes(65_524)), (15, 0x10000, b""), (15, -1, b""), (256, 0, b"")):
        with pytest.raises(Amqp010Error):
            encode_frame(flags, frames.BODY, 1, channel, payload)
    for max_frame in (-1, 0, 12):
        with pytest.raises(Amqp010Error, match="no room"):
            encode_command_frames(0, b"", None, b"", max_frame)
    with pytest.raises(Amqp010Error):
        encode_command_frames(0, b"", None, bytes(70_000), 70_000)
