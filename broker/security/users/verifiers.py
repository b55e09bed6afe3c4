"""Verifiers, which the broker stores in place of passwords, and their check. None of them is the password.

A user has one or more, in the user file separated by spaces:

    scrypt$COST$BLOCK$PARALLEL$SALT$KEY              for PLAIN and AMQPLAIN (RFC 7914; n, r and p)
    scrypt-md5$COST$BLOCK$PARALLEL$SALT$KEY          likewise, of the base64 of the password's MD5: imported users
    SCRAM-SHA-256$ITERATIONS$SALT$STORED$SERVER      for this mechanism, and PLAIN (RFC 5802); SHA-1, SHA-512
    CRAM-MD5$STATES                                  for CRAM-MD5: the two MD5 states of HMAC
    CRAM-MD5-HASHED$STATES, CRAM-MD5-HEX$STATES      for these mechanisms, of Apache's Java and .NET clients
    DIGEST-MD5$REALM$HASH                            for DIGEST-MD5 in this realm: MD5 of name, realm and password
    rabbit-sha256$HASH                               for PLAIN: RabbitMQ's, a salt of four bytes and the hash of it and
                                                     the password; likewise rabbit-sha512, rabbit-md5: imported users
    tags$TAG,TAG                                     no verifier: what the user may administer, such as administrator

Binary values and REALM are base64. Anyone who gets hold of the file can search for passwords in a dictionary: scrypt
slows this down most, SCRAM less, the MD5 verifiers not at all. With the verifiers of CRAM-MD5 and its variants, and of
DIGEST-MD5, one can even log in without the password. So these are made only on request.

Checking a password takes about 40 ms and 16 MiB for scrypt, and as much for SCRAM.

CRAM-MD5 needs HMAC-MD5 with the password as its key. The key is the first block that the inner and the outer hash
process, so the state after this block is equivalent to the password (RFC 2195, section 3): a server keeps these states
instead of the password. `hashlib` cannot continue from a state, hence MD5 (RFC 1321) here; it hashes some hundred bytes
at a login. Not for anything new: MD5 is broken, and these states are as good as the password for CRAM-MD5.

CRAM-MD5-HASHED and CRAM-MD5-HEX are CRAM-MD5 with a key that is made from the MD5 of the password (`cram_key`), so that
a file of MD5 hashes is enough for the server (Java broker, "CRAM-MD5-HASHED"; QPID-1058).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import re
import secrets
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from qstore.formats.named_tuple import NamedTuple

MAX_NAME: Final = 255
"""Maximum characters of a name, and bytes of a password (RFC 4616, section 2: more need not be supported)."""
MAX_SCRAM_ITERATIONS: Final = 1_000_000

SCRYPT: Final = "scrypt"
SCRYPT_MD5: Final = "scrypt-md5"
CRAM_MD5: Final = "CRAM-MD5"
CRAM_MD5_HASHED: Final = "CRAM-MD5-HASHED"
CRAM_MD5_HEX: Final = "CRAM-MD5-HEX"
CRAM: Final = (CRAM_MD5, CRAM_MD5_HASHED, CRAM_MD5_HEX)
DIGEST_MD5: Final = "DIGEST-MD5"
SCRAM_HASHES: Final = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-1": "sha1"}

RABBIT_HASHES: Final = {"rabbit-sha256": "sha256", "rabbit-sha512": "sha512", "rabbit-md5": "md5"}
OWN_ALGORITHM: Final = "qstore_verifiers"
"""In definitions, in place of RabbitMQ's algorithms: the hash is the base64 of a line of the user file."""
_RABBIT_SALT: Final = 4  # bytes
_TAGS: Final = "tags"
MAX_TAGS: Final = 20
_TAG: Final = re.compile(r"[\w.\-]{1,64}")

DEFAULT_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256")
"""The mechanisms for which a new password gets verifiers."""
MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES, *CRAM, DIGEST_MD5)
"""The mechanisms for which there are verifiers."""

_COST, _BLOCK, _PARALLEL = 1 << 14, 8, 1
_MAX_COST: Final = 1 << 17
_MAX_BLOCK: Final = 16
_MAX_PARALLEL: Final = 4
_MAX_MEMORY: Final = 512 << 20
SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_MAX_KEY_BYTES: Final = 128
SCRAM_ITERATIONS: Final = 65_536
_MIN_SCRAM_ITERATIONS: Final = 4096  # RFC 7677, section 4
_MIN_SALT_BYTES: Final = 12  # what `scramp` accepts


def is_user_name(name: str) -> bool:
    """Whether `name` is valid: printable, without spaces, `:`, `@` and `#`, and not too long."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and not any(one in " :@#" for one in name)


def is_password(password: str) -> bool:
    """Whether `password` is valid: PLAIN can transfer it."""
    try:
        return 0 < len(password.encode()) <= MAX_NAME and "\0" not in password
    except UnicodeEncodeError:
        return False


class ScryptVerifier(NamedTuple):
    """A password's scrypt key, and the parameters that it was made with."""

    cost: int
    block: int
    parallel: int
    salt: bytes
    key: bytes

    def matches(self, password: str) -> bool:
        """Whether this is the password. Slow."""
        return hmac.compare_digest(self._derive(password), self.key)

    def _derive(self, password: str) -> bytes:
        return hashlib.scrypt(
            password.encode(),
            salt=self.salt,
            n=self.cost,
            r=self.block,
            p=self.parallel,
            dklen=len(self.key),
            maxmem=_MAX_MEMORY,
        )

    @classmethod
    def make(cls, password: str) -> ScryptVerifier:
        """The verifier of a password, with a new salt."""
        empty = cls(_COST, _BLOCK, _PARALLEL, secrets.token_bytes(SALT_BYTES), bytes(_KEY_BYTES))
        return empty._replace(key=empty._derive(password))

    @classmethod
    def parse(cls, fields: list[str]) -> ScryptVerifier:
        """Raises ValueError."""
        cost, block, parallel, salt, key = fields
        found = cls(int(cost), int(block), int(parallel), _bytes(salt), _bytes(key))
        is_legal = (
            2 <= found.cost <= _MAX_COST
            and found.cost & (found.cost - 1) == 0
            and 1 <= found.block <= _MAX_BLOCK
            and 1 <= found.parallel <= _MAX_PARALLEL
            and SALT_BYTES <= len(found.key) <= _MAX_KEY_BYTES
        )
        if not is_legal:
            raise ValueError("illegal parameters")
        return found

    def fields(self) -> tuple[str, ...]:
        """Its form in the file."""
        return (str(self.cost), str(self.block), str(self.parallel), _text(self.salt), _text(self.key))


UNKNOWN_SCRYPT: Final = ScryptVerifier(_COST, _BLOCK, _PARALLEL, bytes(SALT_BYTES), bytes(_KEY_BYTES))
"""No password's verifier, to spend the same time on an unknown user."""


class ScramVerifier(NamedTuple):
    """The keys of a SCRAM mechanism, and the parameters that they were made with (RFC 5802, section 3)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def matches(self, mechanism: str, password: str) -> bool:
        """Whether this is the password. Slow."""
        try:
            stored, _ = _scram_keys(mechanism, password, self.salt, self.iterations)
        except ValueError:
            return False
        return hmac.compare_digest(stored, self.stored_key)

    @classmethod
    def make(cls, mechanism: str, password: str) -> ScramVerifier:
        """The verifier of a password, with a new salt."""
        salt = secrets.token_bytes(SALT_BYTES)
        return cls(SCRAM_ITERATIONS, salt, *_scram_keys(mechanism, password, salt, SCRAM_ITERATIONS))

    @classmethod
    def parse(cls, mechanism: str, fields: list[str]) -> ScramVerifier:
        """Raises ValueError."""
        iterations, salt, stored, server = fields
        found = cls(int(iterations), _bytes(salt), _bytes(stored), _bytes(server))
        size = hashlib.new(SCRAM_HASHES[mechanism]).digest_size
        if (
            not _MIN_SCRAM_ITERATIONS <= found.iterations <= MAX_SCRAM_ITERATIONS
            or not _MIN_SALT_BYTES <= len(found.salt) <= _MAX_KEY_BYTES
            or not len(found.stored_key) == len(found.server_key) == size
        ):
            raise ValueError("illegal parameters")
        return found

    def fields(self) -> tuple[str, ...]:
        """Its form in the file."""
        return (str(self.iterations), _text(self.salt), _text(self.stored_key), _text(self.server_key))


def _scram_keys(mechanism: str, password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey, of the password, prepared by RFC 4013. Raises ValueError if that fails."""
    import scramp  # takes longer than a tool needs to start

    try:
        _, stored, server, _ = scramp.ScramMechanism(mechanism).make_auth_info(password, iterations, salt)
    except scramp.ScramException as error:
        raise ValueError(str(error)) from None
    return stored, server


def digest_md5_hash(name: str, realm: str, password: str) -> bytes:
    """H(username:realm:password), each in ISO 8859-1 if that is possible, else in UTF-8 (RFC 2831, 2.1.2.1)."""
    parts = []
    for text in (name, realm, password):
        try:
            parts.append(text.encode("latin-1"))
        except UnicodeEncodeError:
            parts.append(text.encode())
    return hashlib.md5(b":".join(parts), usedforsecurity=False).digest()


def md5_text(digest: bytes) -> str:
    """The password of a verifier `scrypt-md5`, from the MD5 of the user's password."""
    return _text(digest)


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def cram_key(mechanism: str, password: bytes) -> bytes:
    """The key of a password for a mechanism of `CRAM`."""
    return password if mechanism == CRAM_MD5 else key_of_md5(mechanism, _md5(password))


def key_of_md5(mechanism: str, digest: bytes) -> bytes:
    """The key of CRAM-MD5-HASHED or CRAM-MD5-HEX, from the MD5 of the user's password.

    For CRAM-MD5-HEX it is the hash in hexadecimal. For CRAM-MD5-HASHED Java's clients take the bytes, which are signed
    there, for characters of 16 bits, and encode these in UTF-8: above 0x7F a byte becomes a character of U+FF80 to
    U+FFFF.
    """
    if mechanism == CRAM_MD5_HEX:
        return digest.hex().encode()
    return "".join(chr(each if each < 0x80 else 0xFF00 | each) for each in digest).encode()


class Verifiers(NamedTuple):
    """The verifiers of one user.

    Attributes:
        scrypt: of the password; None if there is none.
        scrypt_md5: of its MD5; likewise.
        scram: mechanism -> verifier.
        cram: mechanism of `CRAM` -> two MD5 states.
        digest_md5: realm and hash; None if there are none.
        rabbit: the algorithm and the hash of RabbitMQ; None if there are none.
        tags: what the user may administer.
    """

    scrypt: ScryptVerifier | None = None
    scrypt_md5: ScryptVerifier | None = None
    scram: Mapping[str, ScramVerifier] = MappingProxyType({})
    cram: Mapping[str, bytes] = MappingProxyType({})
    digest_md5: tuple[str, bytes] | None = None
    rabbit: tuple[str, bytes] | None = None
    tags: tuple[str, ...] = ()

    def matches(self, password: str) -> bool:
        """Whether this is the password. Slow."""
        if self.scrypt is not None:
            return self.scrypt.matches(password)
        if self.scrypt_md5 is not None:
            return self.scrypt_md5.matches(md5_text(_md5(password.encode())))
        for mechanism, verifier in self.scram.items():
            return verifier.matches(mechanism, password)
        if self.rabbit is not None:
            scheme, stored = self.rabbit
            salt, expected = stored[:_RABBIT_SALT], stored[_RABBIT_SALT:]
            found = hashlib.new(RABBIT_HASHES[scheme], salt + password.encode(), usedforsecurity=False).digest()
            UNKNOWN_SCRYPT.matches(password)  # as long as for any other user
            return hmac.compare_digest(found, expected)
        return False

    @classmethod
    def of_rabbit(cls, algorithm: str, text: str) -> Verifiers:
        """The verifier of a password hash as RabbitMQ's definitions have it.

        Args:
            algorithm: such as rabbit_password_hashing_sha256, or `OWN_ALGORITHM` (`exported`).
            text: the hash, base64; empty for a user who cannot log in with a password.

        Raises:
            ValueError: it is not such a hash.
        """
        if algorithm == OWN_ALGORITHM:
            found = cls.parse(_bytes(text).decode("ascii")) if text else cls()
            return found._replace(cram={}, digest_md5=None, tags=())
        scheme = f"rabbit-{algorithm.removeprefix('rabbit_password_hashing_')}"
        if scheme not in RABBIT_HASHES:
            raise ValueError(f"unknown hashing algorithm {algorithm[:64]!a}")
        return cls.parse(f"{scheme}${text}") if text else cls()

    def exported(self) -> tuple[str, str]:
        """The algorithm and the hash for definitions of another broker, as `of_rabbit` reads them.

        The hash of RabbitMQ if that is all there is; else the verifiers of this broker, without those of CRAM-MD5 and
        DIGEST-MD5, which are as good as the password.
        """
        if self.rabbit is not None and self.scrypt is None and not self.scram:
            return f"rabbit_password_hashing_{self.rabbit[0].removeprefix('rabbit-')}", _text(self.rabbit[1])
        kept = self._replace(cram={}, digest_md5=None, rabbit=None, tags=())
        if kept == Verifiers():
            return "rabbit_password_hashing_sha256", ""
        return OWN_ALGORITHM, _text(kept.text().encode())

    def with_tags(self, tags: Iterable[str]) -> Verifiers:
        """These, with other tags. Raises ValueError: a tag is not valid, or there are too many."""
        found = tuple(dict.fromkeys(tags))
        if len(found) > MAX_TAGS or not all(_TAG.fullmatch(tag) for tag in found):
            raise ValueError(f"a user has at most {MAX_TAGS} tags, each of letters, digits, '_', '-' and '.'")
        return self._replace(tags=found)

    @classmethod
    def make(cls, name: str, password: str, realm: str, mechanisms: Iterable[str]) -> Verifiers:
        """The verifiers of a password for some of `MECHANISMS`.

        Raises:
            ValueError: the password has characters that a mechanism does not allow.
        """
        wanted = set(mechanisms)
        scram = {each: ScramVerifier.make(each, password) for each in SCRAM_HASHES if each in wanted}
        keys = {each: cram_key(each, password.encode()) for each in CRAM if each in wanted}
        return cls(
            ScryptVerifier.make(password) if "PLAIN" in wanted else None,
            None,
            scram,
            {each: hmac_states(key) for each, key in keys.items()},
            (realm, digest_md5_hash(name, realm, password)) if DIGEST_MD5 in wanted else None,
        )

    @classmethod
    def of_md5(cls, digest: bytes, mechanisms: Iterable[str]) -> Verifiers:
        """The verifiers of a password of which there is only the MD5: for PLAIN, and those of `CRAM` on request.

        A client of CRAM-MD5 needs the hash in place of the password then, as with the Java broker.
        """
        keys = {each: key_of_md5(CRAM_MD5_HASHED if each == CRAM_MD5 else each, digest) for each in CRAM}
        states = {each: hmac_states(key) for each, key in keys.items() if each in mechanisms}
        return cls(None, ScryptVerifier.make(md5_text(digest)), {}, states)

    @classmethod
    def parse(cls, text: str) -> Verifiers:
        """The verifiers of a line of the user file. Raises ValueError."""
        found: dict[str, list[str]] = {}
        for each in text.split(" "):
            scheme, *fields = each.split("$")
            if scheme in found:
                raise ValueError("a verifier twice")
            found[scheme] = fields
        try:
            scrypt, scrypt_md5 = (
                ScryptVerifier.parse(found.pop(scheme)) if scheme in found else None for scheme in (SCRYPT, SCRYPT_MD5)
            )
            scram = {each: ScramVerifier.parse(each, found.pop(each)) for each in SCRAM_HASHES if each in found}
            cram: dict[str, bytes] = {}
            for mechanism in CRAM:
                if mechanism in found:
                    (states,) = found.pop(mechanism)
                    cram[mechanism] = _bytes(states)
            realm, digest = found.pop(DIGEST_MD5, ("", ""))
            rabbit = None
            for scheme, algorithm in RABBIT_HASHES.items():
                if scheme in found:
                    (text_of_hash,) = found.pop(scheme)
                    rabbit = scheme, _bytes(text_of_hash)
                    if len(rabbit[1]) != _RABBIT_SALT + hashlib.new(algorithm, usedforsecurity=False).digest_size:
                        raise ValueError("a hash of the wrong size")
            (tags,) = found.pop(_TAGS, ("",))
            digest_md5 = _bytes(digest)
            digest_realm = _bytes(realm).decode()
        except binascii.Error:
            raise ValueError("invalid base64") from None
        if found or any(len(each) != 2 * STATE for each in cram.values()) or len(digest_md5) not in (0, STATE):
            raise ValueError("unknown or illegal verifiers")
        digest_verifier = (digest_realm, digest_md5) if digest_md5 else None
        return cls(scrypt, scrypt_md5, scram, cram, digest_verifier, rabbit).with_tags(filter(None, tags.split(",")))

    def text(self) -> str:
        """Their form in a line of the user file."""
        parts: list[tuple[str, ...]] = []
        if self.scrypt is not None:
            parts.append((SCRYPT, *self.scrypt.fields()))
        if self.scrypt_md5 is not None:
            parts.append((SCRYPT_MD5, *self.scrypt_md5.fields()))
        parts.extend((mechanism, *verifier.fields()) for mechanism, verifier in self.scram.items())
        parts.extend((mechanism, _text(states)) for mechanism, states in self.cram.items())
        if self.digest_md5 is not None:
            parts.append((DIGEST_MD5, _text(self.digest_md5[0].encode()), _text(self.digest_md5[1])))
        if self.rabbit is not None:
            parts.append((self.rabbit[0], _text(self.rabbit[1])))
        if self.tags or not parts:
            parts.append((_TAGS, ",".join(self.tags)))
        return " ".join("$".join(part) for part in parts)

    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the user can log in with."""
        has_password = any(each is not None for each in (self.scrypt, self.scrypt_md5, self.rabbit)) or bool(self.scram)
        return (
            *(("PLAIN",) if has_password else ()),
            *self.scram,
            *self.cram,
            *((DIGEST_MD5,) if self.digest_md5 is not None else ()),
        )


def schemes_for(mechanism: str) -> tuple[str, ...]:
    """The verifiers of which one is enough for a mechanism."""
    if mechanism in ("PLAIN", "AMQPLAIN"):
        return (SCRYPT, SCRYPT_MD5, *SCRAM_HASHES, *RABBIT_HASHES)
    return (mechanism,)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# ---- MD5, continued ----

BLOCK: Final = 64  # bytes
STATE: Final = 16  # bytes
_MASK: Final = 0xFFFF_FFFF
_START: Final = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_SINES: Final = tuple(int(abs(math.sin(step + 1)) * (1 << 32)) for step in range(64))
_SHIFTS: Final = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
_State = tuple[int, int, int, int]


def _compress(state: _State, block: bytes) -> _State:
    """The state after one more block."""
    words = struct.unpack("<16I", block)
    a, b, c, d = state
    for step in range(64):
        turn = step // 16
        if turn == 0:
            mixed, word = (b & c) | (~b & d), step
        elif turn == 1:
            mixed, word = (d & b) | (~d & c), (5 * step + 1) % 16
        elif turn == 2:
            mixed, word = b ^ c ^ d, (3 * step + 5) % 16
        else:
            mixed, word = c ^ (b | (~d & _MASK)), (7 * step) % 16
        total = (a + mixed + _SINES[step] + words[word]) & _MASK
        shift = _SHIFTS[turn][step % 4]
        a, d, c, b = d, c, b, (b + ((total << shift) | (total >> (32 - shift)))) & _MASK
    return tuple((old + new) & _MASK for old, new in zip(state, (a, b, c, d), strict=True))  # type: ignore[return-value]


def _continued(state: bytes, data: bytes) -> bytes:
    """The hash of one block, whose state this is, and of `data`."""
    now: _State = struct.unpack("<4I", state)
    padded = data + b"\x80" + bytes((-len(data) - 9) % BLOCK) + struct.pack("<Q", 8 * (BLOCK + len(data)))
    for at in range(0, len(padded), BLOCK):
        now = _compress(now, padded[at : at + BLOCK])
    return struct.pack("<4I", *now)


def hmac_states(key: bytes) -> bytes:
    """The two states of HMAC-MD5 with this key, the inner and the outer one: 32 bytes."""
    if len(key) > BLOCK:
        key = hashlib.md5(key, usedforsecurity=False).digest()
    padded = key.ljust(BLOCK, b"\0")
    pads = (bytes(one ^ pad for one in padded) for pad in (0x36, 0x5C))  # ipad, opad (RFC 2104)
    return b"".join(struct.pack("<4I", *_compress(_START, pad)) for pad in pads)


def hmac_from_states(states: bytes, data: bytes) -> bytes:
    """HMAC-MD5 of `data` with the key of these states: 16 bytes."""
    return _continued(states[STATE:], _continued(states[:STATE], data))
