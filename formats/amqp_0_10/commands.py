"""Every control and command of AMQP 0-10, as one table, and the codec derived from it.

    control    u8 class | u8 number | 2 flag bytes | fields
    command    u8 class | u8 number | u8 1 | u8 sync | 2 flag bytes | fields
    result     u16 code | 2 flag bytes | fields         the value of execution.result, without the size of its struct32

Controls belong to the connection and the sessions (classes 1 and 2), commands to everything else. `sync` is bit 0 of
the session header, a struct of one byte. The fields are packed as described in `structs`. Names are the
specification's, with underscores in those of fields; a name that is a Python keyword ("global" in file.qos) is passed
as **{...}.

Not checked here: whether a required field is present, and whether a number is in its domain (see `codes`): the
specification defines an error for each, which the session raises.

Source: the AMQP 0-10 specification as XML (`<control>`, `<command>`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from qstore.formats.amqp_0_10 import structs
from qstore.formats.amqp_0_10.structs import (
    FieldDecoder,
    PackedStruct,
    check_amounts,
    encode_fields,
    encode_struct,
    flag_of,
    make_fields,
)
from qstore.formats.amqp_0_10.structs import decode_struct as decode_struct
from qstore.formats.amqp_0_10.types import Amqp010Error
from qstore.formats.named_tuple import NamedTuple
from qstore.formats.values import MAX_VALUES


class Command(NamedTuple):
    """A control or a command.

    Attributes:
        name: class and name, as in "queue.declare".
        code: class << 8 | number.
        is_control: a control, else a command.
        packed: its fields.
        result: the struct of its result, None for a command without.
        has_content: header and body segments may follow it.
    """

    name: str
    code: int
    is_control: bool
    packed: PackedStruct
    result: PackedStruct | None
    has_content: bool


def _control(code: int, name: str, fields: str = "") -> Command:
    return Command(name, code, True, PackedStruct(name, None, 0, make_fields(fields)), None, False)


def _command(
    code: int, name: str, fields: str = "", *, result: PackedStruct | None = None, has_content: bool = False
) -> Command:
    return Command(name, code, False, PackedStruct(name, None, 0, make_fields(fields)), result, has_content)


# ----------------------------------------------------------------------------------------------- tables

CONTROLS: Final = (
    _control(0x0101, "connection.start", "server_properties:map mechanisms:str16-array locales:str16-array"),
    _control(0x0102, "connection.start-ok", "client_properties:map mechanism:str8 response:vbin32 locale:str8"),
    _control(0x0103, "connection.secure", "challenge:vbin32"),
    _control(0x0104, "connection.secure-ok", "response:vbin32"),
    _control(
        0x0105,
        "connection.tune",
        "channel_max:uint16 max_frame_size:uint16 heartbeat_min:uint16 heartbeat_max:uint16",
    ),
    _control(0x0106, "connection.tune-ok", "channel_max:uint16 max_frame_size:uint16 heartbeat:uint16"),
    _control(0x0107, "connection.open", "virtual_host:str8 capabilities:str16-array insist:bit"),
    _control(0x0108, "connection.open-ok", "known_hosts:amqp-host-array"),
    _control(0x0109, "connection.redirect", "host:str16 known_hosts:amqp-host-array"),
    _control(0x010A, "connection.heartbeat"),
    _control(0x010B, "connection.close", "reply_code:uint16 reply_text:str8"),
    _control(0x010C, "connection.close-ok"),
    _control(0x0201, "session.attach", "name:vbin16 force:bit"),
    _control(0x0202, "session.attached", "name:vbin16"),
    _control(0x0203, "session.detach", "name:vbin16"),
    _control(0x0204, "session.detached", "name:vbin16 code:uint8"),
    _control(0x0205, "session.request-timeout", "timeout:uint32"),
    _control(0x0206, "session.timeout", "timeout:uint32"),
    _control(0x0207, "session.command-point", "command_id:sequence-no command_offset:uint64"),
    _control(0x0208, "session.expected", "commands:sequence-set fragments:array"),
    _control(0x0209, "session.confirmed", "commands:sequence-set fragments:array"),
    _control(0x020A, "session.completed", "commands:sequence-set timely_reply:bit"),
    _control(0x020B, "session.known-completed", "commands:sequence-set"),
    _control(0x020C, "session.flush", "expected:bit confirmed:bit completed:bit"),
    _control(0x020D, "session.gap", "commands:sequence-set"),
)

COMMANDS: Final = (
    _command(0x0301, "execution.sync"),
    _command(0x0302, "execution.result", "command_id:sequence-no value:struct32"),
    _command(
        0x0303,
        "execution.exception",
        """error_code:uint16 command_id:sequence-no class_code:uint8 command_code:uint8 field_index:uint8
        description:str16 error_info:map""",
    ),
    Command("message.transfer", 0x0401, False, structs.MESSAGE_TRANSFER, None, True),
    _command(0x0402, "message.accept", "transfers:sequence-set"),
    _command(0x0403, "message.reject", "transfers:sequence-set code:uint16 text:str8"),
    _command(0x0404, "message.release", "transfers:sequence-set set_redelivered:bit"),
    _command(0x0405, "message.acquire", "transfers:sequence-set", result=structs.ACQUIRED),
    _command(0x0406, "message.resume", "destination:str8 resume_id:str16", result=structs.MESSAGE_RESUME_RESULT),
    _command(
        0x0407,
        "message.subscribe",
        """queue:str8 destination:str8 accept_mode:uint8 acquire_mode:uint8 exclusive:bit resume_id:str16
        resume_ttl:uint64 arguments:map""",
    ),
    _command(0x0408, "message.cancel", "destination:str8"),
    _command(0x0409, "message.set-flow-mode", "destination:str8 flow_mode:uint8"),
    _command(0x040A, "message.flow", "destination:str8 unit:uint8 value:uint32"),
    _command(0x040B, "message.flush", "destination:str8"),
    _command(0x040C, "message.stop", "destination:str8"),
    _command(0x0501, "tx.select"),
    _command(0x0502, "tx.commit"),
    _command(0x0503, "tx.rollback"),
    _command(0x0601, "dtx.select"),
    _command(0x0602, "dtx.start", "xid:xid join:bit resume:bit", result=structs.XA_RESULT),
    _command(0x0603, "dtx.end", "xid:xid fail:bit suspend:bit", result=structs.XA_RESULT),
    _command(0x0604, "dtx.commit", "xid:xid one_phase:bit", result=structs.XA_RESULT),
    _command(0x0605, "dtx.forget", "xid:xid"),
    _command(0x0606, "dtx.get-timeout", "xid:xid", result=structs.GET_TIMEOUT_RESULT),
    _command(0x0607, "dtx.prepare", "xid:xid", result=structs.XA_RESULT),
    _command(0x0608, "dtx.recover", result=structs.RECOVER_RESULT),
    _command(0x0609, "dtx.rollback", "xid:xid", result=structs.XA_RESULT),
    _command(0x060A, "dtx.set-timeout", "xid:xid timeout:uint32"),
    _command(
        0x0701,
        "exchange.declare",
        "exchange:str8 type:str8 alternate_exchange:str8 passive:bit durable:bit auto_delete:bit arguments:map",
    ),
    _command(0x0702, "exchange.delete", "exchange:str8 if_unused:bit"),
    _command(0x0703, "exchange.query", "name:str8", result=structs.EXCHANGE_QUERY_RESULT),
    _command(0x0704, "exchange.bind", "queue:str8 exchange:str8 binding_key:str8 arguments:map"),
    _command(0x0705, "exchange.unbind", "queue:str8 exchange:str8 binding_key:str8"),
    _command(
        0x0706,
        "exchange.bound",
        "exchange:str8 queue:str8 binding_key:str8 arguments:map",
        result=structs.EXCHANGE_BOUND_RESULT,
    ),
    _command(
        0x0801,
        "queue.declare",
        "queue:str8 alternate_exchange:str8 passive:bit durable:bit exclusive:bit auto_delete:bit arguments:map",
    ),
    _command(0x0802, "queue.delete", "queue:str8 if_unused:bit if_empty:bit"),
    _command(0x0803, "queue.purge", "queue:str8"),
    _command(0x0804, "queue.query", "queue:str8", result=structs.QUEUE_QUERY_RESULT),
    _command(0x0901, "file.qos", "prefetch_size:uint32 prefetch_count:uint16 global:bit"),
    _command(0x0902, "file.qos-ok"),
    _command(
        0x0903,
        "file.consume",
        "queue:str8 consumer_tag:str8 no_local:bit no_ack:bit exclusive:bit nowait:bit arguments:map",
    ),
    _command(0x0904, "file.consume-ok", "consumer_tag:str8"),
    _command(0x0905, "file.cancel", "consumer_tag:str8"),
    _command(0x0906, "file.open", "identifier:str8 content_size:uint64"),
    _command(0x0907, "file.open-ok", "staged_size:uint64"),
    _command(0x0908, "file.stage", has_content=True),
    _command(0x0909, "file.publish", "exchange:str8 routing_key:str8 mandatory:bit immediate:bit identifier:str8"),
    _command(
        0x090A, "file.return", "reply_code:uint16 reply_text:str8 exchange:str8 routing_key:str8", has_content=True
    ),
    _command(
        0x090B,
        "file.deliver",
        "consumer_tag:str8 delivery_tag:uint64 redelivered:bit exchange:str8 routing_key:str8 identifier:str8",
    ),
    _command(0x090C, "file.ack", "delivery_tag:uint64 multiple:bit"),
    _command(0x090D, "file.reject", "delivery_tag:uint64 requeue:bit"),
    _command(0x0A01, "stream.qos", "prefetch_size:uint32 prefetch_count:uint16 consume_rate:uint32 global:bit"),
    _command(0x0A02, "stream.qos-ok"),
    _command(
        0x0A03, "stream.consume", "queue:str8 consumer_tag:str8 no_local:bit exclusive:bit nowait:bit arguments:map"
    ),
    _command(0x0A04, "stream.consume-ok", "consumer_tag:str8"),
    _command(0x0A05, "stream.cancel", "consumer_tag:str8"),
    _command(0x0A06, "stream.publish", "exchange:str8 routing_key:str8 mandatory:bit immediate:bit", has_content=True),
    _command(
        0x0A07, "stream.return", "reply_code:uint16 reply_text:str8 exchange:str8 routing_key:str8", has_content=True
    ),
    _command(
        0x0A08, "stream.deliver", "consumer_tag:str8 delivery_tag:uint64 exchange:str8 queue:str8", has_content=True
    ),
)

BY_NAME: Final[dict[str, Command]] = {command.name: command for command in CONTROLS + COMMANDS}
CONTROL_BY_CODE: Final[dict[int, Command]] = {control.code: control for control in CONTROLS}
COMMAND_BY_CODE: Final[dict[int, Command]] = {command.code: command for command in COMMANDS}

_RESULTS: Final = {command.result for command in COMMANDS if command.result is not None}
_RESULT_BY_CODE: Final = {result.code: result for result in _RESULTS}
_RESULT_BY_NAME: Final = {result.name: result for result in _RESULTS} | {
    command.name: command.result for command in COMMANDS if command.result is not None
}


# --------------------------------------------------------------------------------------------- encoding

_ONE_RANGE: Final = struct.Struct(">HHHII")
_COMPLETED: Final = BY_NAME["session.completed"].code
_COMPLETED_COMMANDS, _COMPLETED_REPLY = (flag_of(index, BY_NAME["session.completed"].packed.pack) for index in range(2))

# The session header without and with sync.
_SESSION_HEADERS: Final = (
    encode_struct(structs.SESSION_HEADER, {}),
    encode_struct(structs.SESSION_HEADER, {"sync": 1}),
)


def encode_control(control_name: str, /, **values: Any) -> bytes:
    """The payload of a control's frame.

    Args:
        control_name: of the control.
        values: its fields, see `structs.encode_fields`.

    Raises:
        Amqp010Error: there is no such control or field, or a field cannot carry its value.
    """
    control = BY_NAME.get(control_name)
    if control is None or not control.is_control:
        raise Amqp010Error(f"there is no control {control_name}")
    return control.code.to_bytes(2, "big") + encode_fields(control.packed, values)


def encode_completed(ranges: Sequence[tuple[int, int]], *, timely_reply: bool) -> bytes:
    """As `encode_control` of session.completed, which is sent for nearly every write to a publisher.

    Args:
        ranges: first and last of the commands, as a sequence set (`types`).
        timely_reply: whether the peer is to reply with session.known-completed.
    """
    flags = _COMPLETED_COMMANDS | (_COMPLETED_REPLY if timely_reply else 0)
    try:
        if len(ranges) == 1:
            first, last = ranges[0]
            return _ONE_RANGE.pack(_COMPLETED, flags, 8, first, last)
        bounds = tuple(chain.from_iterable(ranges))
        return struct.pack(f">HHH{len(bounds)}I", _COMPLETED, flags, 4 * len(bounds), *bounds)
    except struct.error as error:
        raise Amqp010Error(f"the ranges do not fit session.completed: {error}") from None


def encode_command(command_name: str, /, *, sync: bool = False, **values: Any) -> bytes:
    """The command segment of a command.

    Args:
        command_name: of the command.
        sync: ask the peer to report completion immediately.
        values: its fields, see `structs.encode_fields`.

    Raises:
        Amqp010Error: there is no such command or field, or a field cannot carry its value.
    """
    command = BY_NAME.get(command_name)
    if command is None or command.is_control:
        raise Amqp010Error(f"there is no command {command_name}")
    return command.code.to_bytes(2, "big") + _SESSION_HEADERS[bool(sync)] + encode_fields(command.packed, values)


def encode_result(result_name: str, /, **values: Any) -> bytes:
    """The value of execution.result.

    Args:
        result_name: of the command ("queue.query") or of the struct ("queue-query-result").
        values: the struct's fields, see `structs.encode_fields`.

    Raises:
        Amqp010Error: there is no such result or field, or a field cannot carry its value.
    """
    result = _RESULT_BY_NAME.get(result_name)
    if result is None:
        raise Amqp010Error(f"there is no command or result {result_name}")
    return encode_struct(result, values)[result.size_width :]


# --------------------------------------------------------------------------------------------- decoding

# Code -> control, command or result, and the decoder of its fields.
_CONTROL_DECODERS: Final = {control.code: (control, FieldDecoder(control.packed).decode) for control in CONTROLS}
_COMMAND_DECODERS: Final = {command.code: (command, FieldDecoder(command.packed).decode) for command in COMMANDS}
_RESULT_DECODERS: Final = {code: (result, FieldDecoder(result).decode) for code, result in _RESULT_BY_CODE.items()}
_SYNC_OF: Final = {header: bool(sync) for sync, header in enumerate(_SESSION_HEADERS)}


def decode_control(payload: bytes) -> tuple[Command, dict[str, Any]]:
    """The control in a frame's payload, and all its fields, in the form of `structs`.

    Raises:
        Amqp010Error: the bytes are not one complete control.
    """
    found = _CONTROL_DECODERS.get(int.from_bytes(payload[:2], "big"))
    if found is None:
        raise Amqp010Error(f"unknown control code {payload[:2].hex()}")
    control, decode_fields = found
    if len(payload) > MAX_VALUES:
        check_amounts(control.packed, payload, 2, len(payload))
    return control, decode_fields(payload, 2, len(payload))


def decode_command(payload: bytes) -> tuple[Command, bool, dict[str, Any]]:
    """The command in a command segment, whether it requests sync, and all its fields, in the form of `structs`.

    Raises:
        Amqp010Error: the bytes are not one complete command.
    """
    found = _COMMAND_DECODERS.get(int.from_bytes(payload[:2], "big"))
    if found is None:
        raise Amqp010Error(f"unknown command code {payload[:2].hex()}")
    sync = _SYNC_OF.get(payload[2:4])
    if sync is None:
        raise Amqp010Error(f"{payload[2:4].hex(' ')} is not a session header", 2)
    command, decode_fields = found
    if len(payload) > MAX_VALUES:
        check_amounts(command.packed, payload, 4, len(payload))
    return command, sync, decode_fields(payload, 4, len(payload))


def decode_result(raw: bytes) -> tuple[PackedStruct, dict[str, Any]]:
    """The struct in the value of execution.result, and all its fields, in the form of `structs`.

    Raises:
        Amqp010Error: the bytes are not one complete result.
    """
    found = _RESULT_DECODERS.get(int.from_bytes(raw[:2], "big"))
    if found is None:
        raise Amqp010Error(f"unknown result code {raw[:2].hex()}")
    result, decode_fields = found
    return result, decode_fields(raw, 2, len(raw))
