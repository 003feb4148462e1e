"""The cryptography of the wire protocol, in plain Python from RFC 7748 (X25519), RFC 8439 (ChaCha20-Poly1305),
FIPS 197 and SP 800-38D (AES-128-GCM) and the Noise specification; nothing here is shared with the product, so the
two implementations check each other.
"""

import hashlib
import hmac
import os
import struct

TAG_BYTES = 16
OWNER, HOST, PEER = 1, 2, 3
WORDS = {OWNER: b"ramlace owner key", HOST: b"ramlace host key", PEER: b"ramlace peer key"}
SERVER_WORDS, FRAME_WORDS = b"ramlace server key", b"ramlace frames"
SECRET_ID_WORDS, SECRET_ID_BYTES, CLAIM_BYTES = b"ramlace secret id", 8, 72
BASE_POINT = (9).to_bytes(32, "little")


def derive(key: bytes, words: bytes) -> bytes:
    """Return the key that these words make of another."""
    return hmac.digest(key, words, "blake2s")


def server_public(secret: bytes) -> bytes:
    """Return the public half of a pool's server key."""
    return x25519(derive(secret, SERVER_WORDS), BASE_POINT)


def claim(secret: bytes) -> bytes:
    """Return what a client other than a host says of its key before message 1."""
    return derive(secret, SECRET_ID_WORDS)[:SECRET_ID_BYTES].ljust(CLAIM_BYTES, b"\0")


def host_key(secret: bytes, name: str = "default", serial: int = 1) -> bytes:
    """Return the key of a host: its claim, the key, and the public half of the server key."""
    words = serial.to_bytes(4, "little") + name.encode()
    said = (derive(secret, SECRET_ID_WORDS)[:SECRET_ID_BYTES] + words).ljust(CLAIM_BYTES, b"\0")
    return said + derive(derive(secret, WORDS[HOST]), words) + server_public(secret)


def host_key_of_line(line: str) -> bytes:
    """Return the same from the line of its file."""
    name, serial, digits = line.split()
    words = int(serial).to_bytes(4, "little") + name.encode()
    there = bytes.fromhex(digits)
    return (there[:SECRET_ID_BYTES] + words).ljust(CLAIM_BYTES, b"\0") + there[SECRET_ID_BYTES:]


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


def _poly1305(one_time: bytes, data: bytes) -> bytes:
    r = int.from_bytes(one_time[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(data), 16):
        total = (total + int.from_bytes(data[at : at + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return ((total + int.from_bytes(one_time[16:], "little")) % 2**128).to_bytes(16, "little")


def seal(key: bytes, counter: int, associated: bytes, plain: bytes = b"", *, opening: bool = False) -> bytes:
    """Seal a short message (RFC 8439, with Noise's nonce); or open one, and return it with the tag it must have."""
    assert len(plain) <= 64
    nonce = bytes(4) + counter.to_bytes(8, "little")
    stream = _chacha_block(key, 1, nonce)
    other = bytes(byte ^ pad for byte, pad in zip(plain, stream, strict=False))
    sealed = plain if opening else other
    padded = associated + bytes(-len(associated) % 16) + sealed + bytes(-len(sealed) % 16)
    padded += struct.pack("<QQ", len(associated), len(sealed))
    return other + _poly1305(_chacha_block(key, 0, nonce)[:32], padded)


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
    """The client's side of Noise_NKpsk0_25519_ChaChaPoly_BLAKE2s."""

    def __init__(self, key: bytes, server: bytes, prologue: bytes) -> None:
        # The name is longer than a hash: it is hashed.
        self.h = _hash(b"Noise_NKpsk0_25519_ChaChaPoly_BLAKE2s")
        self.ck = self.h
        self.key = b""
        self.server = server
        self._mix_hash(prologue)
        self._mix_hash(server)
        self.ck, mixed, self.key = _hkdf(self.ck, key, 3)
        self._mix_hash(mixed)
        self.private = os.urandom(32)

    def _mix_hash(self, data: bytes) -> None:
        self.h = _hash(self.h + data)

    def _mix_key(self, material: bytes) -> None:
        self.ck, self.key = _hkdf(self.ck, material, 2)

    def first(self, wanted: int = 0xFFFF_FFFF) -> bytes:
        """Return message 1 for the server with this number."""
        public = x25519(self.private, BASE_POINT)
        self._mix_hash(public)
        self._mix_key(public)
        self._mix_key(x25519(self.private, self.server))
        sealed = seal(self.key, 0, self.h, wanted.to_bytes(4, "little"))
        self._mix_hash(sealed)
        return public + sealed

    def finish(self, answer: bytes) -> bytes:
        """Check message 2 and return the confirmation; `answered` is what the server said in it."""
        public, sealed = answer[:32], answer[32:]
        self._mix_hash(public)
        self._mix_key(public)
        self._mix_key(x25519(self.private, public))
        opened = seal(self.key, 0, self.h, sealed[:-TAG_BYTES], opening=True)
        assert sealed[-TAG_BYTES:] == opened[-TAG_BYTES:], "the server does not know the secret"
        self.answered = opened[:-TAG_BYTES]
        sending, receiving = _hkdf(self.ck, b"", 2)
        self.frames = derive(sending, FRAME_WORDS), derive(receiving, FRAME_WORDS)
        return seal(sending, 0, b"")


# Frames


def _sbox() -> bytes:
    box, p, q = bytearray(256), 1, 1
    while True:
        p ^= (p << 1 ^ (0x11B if p & 0x80 else 0)) & 0xFF if p & 0x80 else p << 1
        for shift in (1, 2, 4):
            q ^= q << shift
        q = (q & 0xFF) ^ (0x09 if q & 0x80 else 0)
        turned = q ^ _turn(q, 1) ^ _turn(q, 2) ^ _turn(q, 3) ^ _turn(q, 4)
        box[p] = turned ^ 0x63
        if p == 1:
            break
    box[0] = 0x63
    return bytes(box)


def _turn(value: int, by: int) -> int:
    return (value << by | value >> (8 - by)) & 0xFF


def _double(value: int) -> int:
    return (value << 1 ^ (0x1B if value & 0x80 else 0)) & 0xFF


_SBOX = _sbox()
# One round of AES for each byte of a column: substituted and mixed.
_ROUND = [bytes([_double(box), box, box, _double(box) ^ box]) for box in _SBOX]
_TABLES = [[int.from_bytes(row[-turn:] + row[:-turn] if turn else row, "big") for row in _ROUND] for turn in range(4)]


class Cipher:
    """AES-128-GCM for one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        words = list(struct.unpack(">4I", key[:16]))
        constant = 1
        for at in range(4, 44):
            word = words[at - 1]
            if at % 4 == 0:
                rotated = (word << 8 | word >> 24) & 0xFFFF_FFFF
                word = int.from_bytes(bytes(_SBOX[byte] for byte in rotated.to_bytes(4, "big")), "big")
                word ^= constant << 24
                constant = _double(constant)
            words.append(words[at - 4] ^ word)
        self.words = words
        self.count = 0
        # Multiples of the hash key by every byte in the last place; the others follow by shifting.
        h = int.from_bytes(self._block(bytes(16)), "big")
        self.powers = [self._multiples(h, place) for place in range(16)]

    @staticmethod
    def _multiples(h: int, place: int) -> list[int]:
        value = h
        for _ in range(8 * place):
            value = value >> 1 ^ (0xE1 << 120 if value & 1 else 0)
        table = [0] * 256
        for bit in range(8):
            table[0x80 >> bit] = value
            value = value >> 1 ^ (0xE1 << 120 if value & 1 else 0)
        for number in range(256):
            low = number & -number
            if number != low:
                table[number] = table[number ^ low] ^ table[low]
        return table

    def _block(self, block: bytes) -> bytes:
        words, (t0, t1, t2, t3) = self.words, _TABLES
        state = [part ^ key for part, key in zip(struct.unpack(">4I", block), words, strict=False)]
        for at in range(4, 40, 4):
            state = [
                t0[state[c] >> 24]
                ^ t1[state[(c + 1) % 4] >> 16 & 0xFF]
                ^ t2[state[(c + 2) % 4] >> 8 & 0xFF]
                ^ t3[state[(c + 3) % 4] & 0xFF]
                ^ words[at + c]
                for c in range(4)
            ]
        last = [
            (
                _SBOX[state[c] >> 24] << 24
                | _SBOX[state[(c + 1) % 4] >> 16 & 0xFF] << 16
                | _SBOX[state[(c + 2) % 4] >> 8 & 0xFF] << 8
                | _SBOX[state[(c + 3) % 4] & 0xFF]
            )
            ^ words[40 + c]
            for c in range(4)
        ]
        return struct.pack(">4I", *last)

    def _tag(self, nonce: bytes, associated: bytes, sealed: bytes) -> bytes:
        total = 0
        lengths = struct.pack(">QQ", 8 * len(associated), 8 * len(sealed))
        padded = associated + bytes(-len(associated) % 16) + sealed + bytes(-len(sealed) % 16) + lengths
        for at in range(0, len(padded), 16):
            mixed = (total ^ int.from_bytes(padded[at : at + 16], "big")).to_bytes(16, "big")
            total = 0
            for table, byte in zip(self.powers, mixed, strict=True):
                total ^= table[byte]
        return bytes(
            a ^ b for a, b in zip(total.to_bytes(16, "big"), self._block(nonce + bytes([0, 0, 0, 1])), strict=True)
        )

    def _stream(self, nonce: bytes, data: bytes) -> bytes:
        blocks = range(2, 2 + (len(data) + 15) // 16)
        pad = b"".join(self._block(nonce + number.to_bytes(4, "big")) for number in blocks)[: len(data)]
        return (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(len(data), "big")

    def _nonce(self) -> bytes:
        nonce = bytes(4) + self.count.to_bytes(8, "little")
        self.count += 1
        return nonce

    def seal(self, associated: bytes, plain: bytes) -> bytes:
        """Return the sealed bytes and their tag."""
        nonce = self._nonce()
        sealed = self._stream(nonce, plain)
        return sealed + self._tag(nonce, associated, sealed)

    def open(self, associated: bytes, sealed: bytes) -> bytes:
        """Return what was sealed, whose tag must be right."""
        nonce = self._nonce()
        body, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        assert tag == self._tag(nonce, associated, body), "these bytes are not what the server sealed"
        return self._stream(nonce, body)
