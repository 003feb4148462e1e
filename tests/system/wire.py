"""The wire protocol as docs/WIRE.md has it, written a second time: a client that may misbehave.

The cryptography is plain Python from RFC 7748 (X25519), RFC 8439 (ChaCha20-Poly1305) and the Noise
specification; nothing here is shared with the product, so the two implementations check each other.
"""

import hashlib
import hmac
import os
import socket
import struct
from pathlib import Path

PREAMBLE_MAGIC = b"ramlace\n"
VERSION = 7
WELCOME, REFUSED = 0, 1
HEADER_BYTES = 64
REPLY, ERROR, ON_BEHALF, BY_PATH = 1, 2, 8, 16

OPEN_SESSION, HEARTBEAT, SERVER_STATUS, STOP_SERVER = 0x0001, 0x0002, 0x0004, 0x0005
GET_MAP, FORGET_SERVER = 0x0101, 0x0103
READ_CHUNK, WRITE_CHUNK = 0x0201, 0x0202
LOOKUP, MAKE_DIRECTORY, UNLINK = 0x0301, 0x030A, 0x030C
WALK = 0x0321
CHECK_SLOTS, CHECK_INODES, CHECK_ENTRIES = 0x0106, 0x0107, 0x0323
CUT_LANE = 0x0405
SESSION_USER, SESSION_HOST, SESSION_PEER = 1, 2, 3


# Cryptography


def x25519(scalar: bytes, point: bytes) -> bytes:
    """Multiply a point of Curve25519 (RFC 7748)."""
    p = 2**255 - 19
    k = int.from_bytes(bytes([scalar[0] & 248, *scalar[1:31], scalar[31] & 127 | 64]), "little")
    u = int.from_bytes(point, "little") & ((1 << 255) - 1)
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for bit in range(254, -1, -1):
        now = k >> bit & 1
        if swap ^ now:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = now
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % p, b * b % p, d * a % p, c * b % p
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % p, u * (da - cb) ** 2 % p
        x2, z2 = aa * bb % p, e * (aa + 121_665 * e) % p
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def _chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    words = list(struct.unpack("<4I8II3I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce))
    state = words.copy()

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFF_FFFF
            mixed = state[z] ^ state[x]
            state[z] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFF_FFFF

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for row in range(4):
            quarter(row, 4 + (row + 1) % 4, 8 + (row + 2) % 4, 12 + (row + 3) % 4)
    return struct.pack("<16I", *((x + y) & 0xFFFF_FFFF for x, y in zip(words, state, strict=True)))


def seal_nothing(key: bytes, counter: int, associated: bytes) -> bytes:
    """Return the tag of an empty message (RFC 8439, with Noise's nonce)."""
    nonce = bytes(4) + counter.to_bytes(8, "little")
    one_time = _chacha_block(key, 0, nonce)[:32]
    r = int.from_bytes(one_time[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    padded = associated + bytes(-len(associated) % 16) + struct.pack("<QQ", len(associated), 0)
    total = 0
    for at in range(0, len(padded), 16):
        total = (total + int.from_bytes(padded[at : at + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return ((total + int.from_bytes(one_time[16:], "little")) % 2**128).to_bytes(16, "little")


def _hash(data: bytes) -> bytes:
    return hashlib.blake2s(data).digest()


def _hkdf(chaining: bytes, material: bytes, count: int) -> list[bytes]:
    key = hmac.digest(chaining, material, "blake2s")
    outputs, last = [], b""
    for number in range(1, count + 1):
        last = hmac.digest(key, last + bytes([number]), "blake2s")
        outputs.append(last)
    return outputs


class Noise:
    """The client's side of Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s."""

    def __init__(self, secret: bytes, prologue: bytes) -> None:
        # The name is longer than a hash: it is hashed.
        self.h = _hash(b"Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s")
        self.ck = self.h
        self.key = b""
        self._mix_hash(prologue)
        self.ck, mixed, self.key = _hkdf(self.ck, secret, 3)
        self._mix_hash(mixed)
        self.private = os.urandom(32)

    def _mix_hash(self, data: bytes) -> None:
        self.h = _hash(self.h + data)

    def _mix_key(self, material: bytes) -> None:
        self.ck, self.key = _hkdf(self.ck, material, 2)

    def first(self) -> bytes:
        """Return message 1."""
        public = x25519(self.private, (9).to_bytes(32, "little"))
        self._mix_hash(public)
        self._mix_key(public)
        tag = seal_nothing(self.key, 0, self.h)
        self._mix_hash(tag)
        return public + tag

    def finish(self, answer: bytes) -> bytes:
        """Check message 2 and return the confirmation."""
        public, tag = answer[:32], answer[32:]
        self._mix_hash(public)
        self._mix_key(public)
        self._mix_key(x25519(self.private, public))
        assert tag == seal_nothing(self.key, 0, self.h), "the server does not know the secret"
        sending, _ = _hkdf(self.ck, b"", 2)
        return seal_nothing(sending, 0, b"")


# Frames


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F6_3B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the checksum of headers."""
    value = 0xFFFF_FFFF
    for byte in data:
        value = value >> 8 ^ _CRC[(value ^ byte) & 0xFF]
    return value ^ 0xFFFF_FFFF


def preamble(payload_bytes: int, version: int = VERSION, magic: bytes = PREAMBLE_MAGIC) -> bytes:
    """Return the first 16 bytes of a client."""
    return magic + struct.pack("<HBBI", version, WELCOME, 0, payload_bytes)


def varint(number: int) -> bytes:
    """Encode an unsigned number as postcard does."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def numbers(*values: int) -> bytes:
    """Encode a body of numbers."""
    return b"".join(varint(value) for value in values)


def names(*texts: bytes) -> bytes:
    """Encode a list of names."""
    return varint(len(texts)) + b"".join(varint(len(text)) + text for text in texts)


def header(
    kind: int,
    session: bytes,
    body_bytes: int,
    data_bytes: int = 0,
    *,
    slot: int = 0,
    sequence: int = 0,
    epoch: int = 0,
    call: int = 1,
    flags: int = 0,
    version: int = VERSION,
    deadline_millis: int = 4000,
) -> bytes:
    """Return a frame's header with its checksum."""
    words = struct.pack(
        "<4sHHHHI16sQIIIII",
        b"RLCE",
        version,
        kind,
        flags,
        slot,
        deadline_millis,
        session,
        sequence,
        0,
        epoch,
        call,
        body_bytes,
        data_bytes,
    )
    return words + crc32c(words).to_bytes(4, "little")


class RefusedError(Exception):
    """What the server said instead of letting somebody in."""


class Reply:
    """A reply's header, body and data."""

    def __init__(self, head: bytes, body: bytes, data: bytes) -> None:
        self.flags = int.from_bytes(head[8:10], "little")
        self.body = body
        self.data = data

    @property
    def error(self) -> str:
        """The sentence of a reply that says no, empty for others."""
        if not self.flags & ERROR:
            return ""
        at = 0
        while self.body[at] & 0x80:
            at += 1
        at += 1
        length, shift = 0, 0
        while True:
            length |= (self.body[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not self.body[at - 1] & 0x80:
                break
        return self.body[at : at + length].decode()


class Wire:
    """A connection that says what it is told to."""

    def __init__(self, address: str | Path, timeout: float = 10.0) -> None:
        if isinstance(address, Path):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(str(address))
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), timeout)
        self.session = os.urandom(16)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(b"".join(parts))

    def take(self, count: int) -> bytes:
        """Receive so many bytes; fewer when the server closed."""
        received = bytearray()
        while len(received) < count:
            try:
                part = self.socket.recv(min(count - len(received), 1 << 20))
            except ConnectionResetError:
                break
            if not part:
                break
            received.extend(part)
        return bytes(received)

    def is_closed(self) -> bool:
        """Wait for the server's next word; whether it was the end."""
        return self.take(1) == b""

    def refusal(self) -> str:
        """Return the line with which a stranger is sent away, after which nothing more comes."""
        head = self.take(16)
        assert len(head) == 16, f"the server closed without a word: {head!r}"
        assert head[:8] == PREAMBLE_MAGIC
        assert head[10] == REFUSED, "the server let a stranger in"
        line = self.take(int.from_bytes(head[12:16], "little"))
        assert line.endswith(b"\n")
        assert self.is_closed()
        return line.decode().strip()

    def greet(self, secret: bytes) -> None:
        """Prove the secret; RefusedError with the server's line when it does not want us."""
        first = preamble(48)
        noise = Noise(secret, first)
        self.send(first, noise.first())
        head = self.take(16)
        payload = self.take(int.from_bytes(head[12:16], "little"))
        if head[10] != WELCOME:
            raise RefusedError(payload.decode())
        self.send(noise.finish(payload))

    def call(
        self,
        kind: int,
        body: bytes,
        data: bytes = b"",
        *,
        slot: int = 0,
        sequence: int = 0,
        epoch: int = 0,
        flags: int = 0,
    ) -> Reply:
        """Send a request and take its reply."""
        lengths = len(body), len(data)
        head = header(kind, self.session, *lengths, slot=slot, sequence=sequence, epoch=epoch, flags=flags)
        self.send(head, body, data)
        return self.reply()

    def reply(self) -> Reply:
        """Take a reply."""
        head = self.take(HEADER_BYTES)
        assert len(head) == HEADER_BYTES, "the server closed the connection"
        body, data = (int.from_bytes(head[at : at + 4], "little") for at in (52, 56))
        return Reply(head, self.take(body), self.take(data))

    def open_session(self, kind: int = SESSION_USER) -> Reply:
        """Begin a session."""
        return self.call(OPEN_SESSION, bytes([kind, 0]) + varint(4) + b"test")
