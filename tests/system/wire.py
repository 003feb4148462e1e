"""The wire protocol as docs/WIRE.md has it, written a second time: a client that may misbehave."""

import os
import socket
import struct
from pathlib import Path

from noise import CLAIM_BYTES, HOST, OWNER, TAG_BYTES, WORDS, Cipher, Noise, claim, derive, server_public

PREAMBLE_MAGIC = b"ramlace\n"
VERSION = 30
WELCOME, REFUSED, ELSEWHERE = 0, 1, 2
# What follows a preamble: a claim and a Noise message; a Noise message.
FIRST_BYTES, SECOND_BYTES = CLAIM_BYTES + 52, 56
RECORD_BYTES = 64 << 10
HEADER_BYTES = 64
REPLY, ERROR, ON_BEHALF, BY_PATH = 1, 2, 8, 16

OPEN_SESSION, HEARTBEAT, CLOSE_SESSION, SERVER_STATUS, STOP_SERVER = 0x0001, 0x0002, 0x0003, 0x0004, 0x0005
LISTEN = 0x0007
GET_MAP, FORGET_SERVER = 0x0101, 0x0103
CHANGE_KEYS, GET_KEY_BOOK, ADOPT_KEY_BOOK, LIST_KEYS, ROTATE_SECRET = 0x0108, 0x0109, 0x010A, 0x010B, 0x010C
READ_CHUNK, WRITE_CHUNK = 0x0201, 0x0202
LOOKUP, OPEN, MAKE_DIRECTORY, UNLINK, GET_PERMIT = 0x0301, 0x0306, 0x030A, 0x030C, 0x0328
RESERVE_APPEND, FINISH_APPEND = 0x030F, 0x0310
ARRIVE_BARRIER, LEAVE_BARRIER, CHANGE_CELL = 0x0708, 0x0709, 0x070A
WALK, GET_ATTRIBUTES_MANY = 0x0321, 0x0322
CHECK_SLOTS, CHECK_INODES, CHECK_ENTRIES = 0x0106, 0x0107, 0x0323
CUT_LANE, PREPARE, DECIDE = 0x0405, 0x0409, 0x040A
MEND = 0x0329
MEND_LANES, CHANGE_MANY = 0x032A, 0x032B
LEASE_NAME = 0x0710
# What a kernel keeps of a ReadChunk.
KEEP_NO = 1
SESSION_USER, SESSION_HOST, SESSION_PEER = 1, 2, 3


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


def preamble(payload_bytes: int = FIRST_BYTES, version: int = VERSION, role: int = OWNER) -> bytes:
    """Return the first 16 bytes of a client."""
    return PREAMBLE_MAGIC + struct.pack("<HBBI", version, WELCOME, role, payload_bytes)


def hello(secret: bytes, role: int = OWNER) -> tuple[Noise, bytes]:
    """Return a greeting's state and what stands before its message; of a host, `secret` is its key."""
    first = preamble(role=role)
    if role == HOST:
        first += secret[:CLAIM_BYTES]
        return Noise(secret[CLAIM_BYTES:-32], secret[-32:], first), first
    first += claim(secret)
    return Noise(derive(secret, WORDS[role]), server_public(secret), first), first


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
        # What frames are sealed with; none on a Unix socket.
        self.sealing: Cipher | None = None
        self.opening: Cipher | None = None

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

    def greet(self, secret: bytes, wanted: int = 0xFFFF_FFFF, role: int = OWNER) -> None:
        """Prove the secret, in a role, or a host key; RefusedError with the server's line when it does not want us."""
        noise, first = hello(secret, role if len(secret) == 32 else HOST)
        self.send(first, noise.first(wanted))
        head = self.take(16)
        payload = self.take(int.from_bytes(head[12:16], "little"))
        if head[10] != WELCOME:
            raise RefusedError(payload.decode())
        self.send(noise.finish(payload))
        protection = noise.answered[4]
        assert protection == (0 if self.socket.family == socket.AF_UNIX else 2)
        if protection:
            self.sealing, self.opening = (Cipher(key) for key in noise.frames)

    def say(self, head: bytes, body: bytes, data: bytes = b"") -> None:
        """Send a frame, sealed where frames are."""
        if self.sealing is None:
            self.send(head, body, data)
            return
        records = [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]
        self.send(head, self.sealing.seal(head, body), *(self.sealing.seal(b"", record) for record in records))

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
        self.say(head, body, data)
        return self.reply()

    def reply(self) -> Reply:
        """Take a reply."""
        head = self.take(HEADER_BYTES)
        assert len(head) == HEADER_BYTES, "the server closed the connection"
        body, data = (int.from_bytes(head[at : at + 4], "little") for at in (52, 56))
        return Reply(head, self._opened(head, body), self._data(data))

    def _opened(self, associated: bytes, count: int) -> bytes:
        if self.opening is None:
            return self.take(count)
        return self.opening.open(associated, self.take(count + TAG_BYTES))

    def _data(self, count: int) -> bytes:
        if self.opening is None:
            return self.take(count)
        lengths = (min(RECORD_BYTES, count - at) for at in range(0, count, RECORD_BYTES))
        return b"".join(self._opened(b"", length) for length in lengths)

    def open_session(self, kind: int = SESSION_USER) -> Reply:
        """Begin a session."""
        return self.call(OPEN_SESSION, bytes([kind, 0]) + varint(4) + b"test")
