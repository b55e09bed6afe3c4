"""GSSAPI, both ends (RFC 4752): Kerberos tickets, on the library `gssapi`, which is optional; and its security layers.

    client                                          server
    token                                      ->
                                               <-   token; more of them until both contexts are established
    (empty)                                    ->
                                               <-   wrapped: the layers that are possible, maximum size
    wrapped: one layer, size, authorization id ->   authenticated

    layer   ssf            of everything that follows the login
    1       0              none
    2       1              each part has a checksum (integrity)
    4       256, 128, 56   and is encrypted (confidentiality); the strength depends on the ticket

With a layer each part is a token, after its length in four bytes; its maximum size is that which the other end has
sent, with room for `_MIN_DATA`, so that a part costs little. The server offers layers if the connection has no TLS, its
protocol has a place where they begin, and the client's context has them and notices parts that are repeated or missing,
as it must (RFC 4752, section 3.1). Where encryption is required, only that is offered. The client takes the strongest
one that its limits of the security strength factor (ssf) allow.

The broker's principal is `qpidd/HOST@REALM`, with a key in the keytab that KRB5_KTNAME names (/etc/krb5.keytab by
default). The user id is the client's principal: `guest@EXAMPLE.COM`. Source: Qpid C++ Broker Book, 1.5.1.3.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from typing import Any, Final

from qstore.broker.security.sasl.exchange import (
    UNEXPECTED,
    Answer,
    Challenge,
    Failure,
    LayerError,
    Login,
    Outcome,
    PasswordCheck,
    Success,
    acts_as_another,
)
from qstore.broker.security.users.verifiers import MAX_NAME

GSSAPI: Final = "GSSAPI"
SERVICE: Final = "qpidd"
_MAX_TOKEN: Final = 65_535  # bytes; tickets with many groups have some ten thousand
_NO_LAYER, _INTEGRITY, _CONFIDENTIALITY = 1, 2, 4
_CHOICE_BYTES: Final = 4  # layers or layer, and the maximum size
_MAX_PART: Final = 65_535  # bytes of a token of a layer that this end accepts: as many as Cyrus SASL
_MIN_DATA: Final = 1024  # bytes of data of a part that the other end must accept: 64 KiB in small ones take a second
_LENGTH_BYTES: Final = 4
_SSF_OID: Final = "1.2.840.113554.1.2.2.5.15"  # GSS_C_SEC_CONTEXT_SASL_SSF, of MIT Kerberos
_OLD_SSF: Final = 56  # where the library does not tell: what Cyrus SASL said before


@cache
def is_installed() -> bool:
    """Whether the library is installed, with the system's Kerberos libraries."""
    if importlib.util.find_spec("gssapi") is None:
        return False
    try:
        importlib.import_module("gssapi")
    except ImportError:
        return False
    return True


def _library() -> Any:
    return importlib.import_module("gssapi")


def has_ticket() -> bool:
    """Whether there is a valid ticket to log in with."""
    library = _library()
    try:
        return int(library.Credentials(usage="initiate").lifetime or 0) > 0
    except library.exceptions.GSSError:
        return False


def has_keytab() -> bool:
    """Whether the library is installed, and the keytab has a key of the broker's service."""
    if not is_installed():
        return False
    try:
        _broker_key()
    except _library().exceptions.GSSError:
        return False
    return True


def _broker_key() -> Any:
    library = _library()
    name = library.Name(SERVICE, library.NameType.hostbased_service)
    return library.Credentials(name=name, usage="accept")


class GssapiLayer:
    """Protects what is sent after the login, and checks what is received.

    Args:
        context: an established context.
        encrypts: whether it encrypts.
        most: bytes of a token that the other end accepts.

    Attributes:
        ssf: its strength: bits of the key, or 1.

    Raises:
        LayerError: the other end accepts too little.
    """

    def __init__(self, context: Any, most: int, *, encrypts: bool) -> None:
        self._context, self._encrypts = context, encrypts
        self._part = int(context.get_wrap_size_limit(most, encrypts)) if most else 0
        if self._part < _MIN_DATA:
            raise LayerError(f"tokens of {most:,} bytes have no room for {_MIN_DATA:,} bytes of data")
        self._rest = b""
        self.ssf = _strength(context) if encrypts else 1

    def send(self, data: bytes) -> bytes:
        """As `SecurityLayer.send`."""
        tokens: list[bytes] = []
        for at in range(0, len(data), self._part):
            token = self._context.wrap(data[at : at + self._part], self._encrypts).message
            tokens += (len(token).to_bytes(_LENGTH_BYTES, "big"), token)
        return b"".join(tokens)

    def receive(self, data: bytes) -> bytes:
        """As `SecurityLayer.receive`."""
        data = self._rest + data
        parts, at, end = [], 0, len(data)
        while end - at >= _LENGTH_BYTES:
            begin = at + _LENGTH_BYTES
            size = int.from_bytes(data[at:begin], "big")
            if size > _MAX_PART:
                raise LayerError(f"a part of {size:,} bytes is larger than {_MAX_PART:,}")
            if end - begin < size:
                break
            at = begin + size
            parts.append(self._unwrapped(data[begin:at]))
        self._rest = data[at:]
        return b"".join(parts)

    def _unwrapped(self, token: bytes) -> bytes:
        try:
            found = self._context.unwrap(token)
        except _library().exceptions.GSSError as error:
            raise LayerError(f"Kerberos: {str(error)[:300]!a}") from None
        if self._encrypts and not found.encrypted:
            raise LayerError("a part is not encrypted")
        message: bytes = found.message
        return message


def _strength(context: Any) -> int:
    """Bits of the key of a context."""
    library = _library()
    try:
        found = library.raw.inquire_sec_context_by_oid(context, library.OID.from_int_seq(_SSF_OID))
        return int.from_bytes(found[0], "big")
    except (AttributeError, IndexError, library.exceptions.GSSError):
        return _OLD_SSF


def _choice(layers: int) -> bytes:
    """The layers that are offered, or the one that is chosen, with the maximum size of a token."""
    size = _MAX_PART if layers & ~_NO_LAYER else 0
    return bytes([layers]) + size.to_bytes(_CHOICE_BYTES - 1, "big")


class GssapiServer:
    """The server's end."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._context: Any = None
        self._offered = 0  # layers

    def start(self, response: bytes | None, /) -> Outcome:
        """Process the first token, or request it."""
        return self.step(response) if response else Challenge(b"")

    def step(self, response: bytes, /) -> Outcome:
        """Process a token, or the choice of a security layer."""
        if len(response) > _MAX_TOKEN:
            return Failure("the SASL response is too long")
        return PasswordCheck("", lambda: self._work(response))

    def _work(self, response: bytes) -> Answer:
        library = _library()
        try:
            if self._offered:
                return self._chosen(self._context.unwrap(response).message)
            if self._context is None:
                self._context = library.SecurityContext(creds=_broker_key(), usage="accept")
            if not self._context.complete:
                token = self._context.step(response)
                if token or not self._context.complete:
                    return Challenge(token or b"")
            elif response:
                return UNEXPECTED
            self._offered = _NO_LAYER | (self._possible() if self._login.has_layers else 0)
            if self._login.must_encrypt:
                self._offered &= _CONFIDENTIALITY
                if not self._offered:
                    return Failure("only encrypted connections are accepted, but the client cannot encrypt")
            return Challenge(self._context.wrap(_choice(self._offered), False).message)
        except library.exceptions.GSSError as error:
            return Failure(f"Kerberos: {str(error)[:300]!a}")

    def _possible(self) -> int:
        """The layers that the client's context has."""
        flags, flag = self._context.actual_flags, _library().RequirementFlag
        if flag.out_of_sequence_detection not in flags:
            return 0
        integrity = _INTEGRITY if flag.integrity in flags else 0
        return integrity | (_CONFIDENTIALITY if flag.confidentiality in flags else 0)

    def _chosen(self, choice: bytes) -> Answer:
        user_id = str(self._context.initiator_name)
        layer = choice[0] if len(choice) >= _CHOICE_BYTES else 0
        if layer not in (_NO_LAYER, _INTEGRITY, _CONFIDENTIALITY) or not layer & self._offered:
            return Failure(f"user {user_id!a}: asked for a security layer that was not offered")
        if not user_id.isprintable() or len(user_id) > MAX_NAME or " " in user_id:
            return Failure("invalid user name")
        authorization = choice[_CHOICE_BYTES:]
        if authorization not in (b"", user_id.encode(), self._login.local(user_id).encode()):
            return acts_as_another(user_id)
        if layer == _NO_LAYER:
            return Success(user_id)
        most = int.from_bytes(choice[1:_CHOICE_BYTES], "big")
        try:
            return Success(user_id, GssapiLayer(self._context, most, encrypts=layer == _CONFIDENTIALITY))
        except LayerError as error:
            return Failure(f"user {user_id!a}: {error}")


class GssapiClient:
    """The client's end.

    Args:
        service: the first part of the broker's principal.
        host: the second part: the broker's fully qualified host name.
        user: the authorization id; None for that of the ticket.
        min_ssf, max_ssf: limits of the strength of the security layer; 0 and 0 for none.

    Attributes:
        layer: the layer for what follows the login; None for none.

    Raises:
        ValueError: the library cannot use this principal.
    """

    name = GSSAPI

    def __init__(self, service: str, host: str, user: str | None, min_ssf: int = 0, max_ssf: int = 0) -> None:
        self.is_complete = False
        self.layer: GssapiLayer | None = None
        self._user, self._min_ssf, self._max_ssf = user or "", min_ssf, max_ssf
        library = _library()
        flag = library.RequirementFlag
        flags = [flag.mutual_authentication, flag.out_of_sequence_detection, flag.integrity]
        if max_ssf > 1:
            flags.append(flag.confidentiality)
        try:
            target = library.Name(f"{service}@{host}", library.NameType.hostbased_service)
            self._context: Any = library.SecurityContext(name=target, usage="initiate", flags=flags)
        except library.exceptions.GSSError as error:
            raise ValueError(f"{GSSAPI}: {error}") from None

    def start(self) -> bytes:
        """The first token."""
        return self._guarded(self._context.step)

    def step(self, challenge: bytes, /) -> bytes:
        """The next token, or the choice of a security layer."""
        if not self._context.complete:
            return self._guarded(self._context.step, challenge)
        offer = self._guarded(lambda: self._context.unwrap(challenge).message)
        if len(offer) < _CHOICE_BYTES:
            raise ValueError(f"{GSSAPI}: the broker offers no security layers, not even none")
        choice = self._choose(offer[0], int.from_bytes(offer[1:_CHOICE_BYTES], "big"))
        self.is_complete = True
        return self._guarded(lambda: self._context.wrap(_choice(choice) + self._user.encode(), False).message)

    def _choose(self, offered: int, most: int) -> int:
        """The strongest layer of those offered that the limits allow. Raises ValueError."""
        for each in (_CONFIDENTIALITY, _INTEGRITY):
            if offered & each and most and self._max_ssf:
                layer = GssapiLayer(self._context, most, encrypts=each == _CONFIDENTIALITY)
                if self._min_ssf <= layer.ssf <= self._max_ssf:
                    self.layer = layer
                    return each
        if self._min_ssf or not offered & _NO_LAYER:
            limits = f"sasl_min_ssf {self._min_ssf} and sasl_max_ssf {self._max_ssf}"
            raise ValueError(f"{GSSAPI}: the broker offers no security layer that {limits} allow")
        return _NO_LAYER

    @staticmethod
    def _guarded(work: Any, *arguments: bytes) -> bytes:
        try:
            return work(*arguments) or b""
        except _library().exceptions.GSSError as error:
            raise ValueError(f"{GSSAPI}: {error}") from None
