"""Bytes and seconds for people."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """Return the bytes that ``1GiB``, ``512M`` or ``4096`` stand for; ValueError otherwise."""
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = word[-1:] if word[-1:] in _UNITS else ""
    number = float(word.removesuffix(unit) if unit else word)
    if not 0 < number < float("inf"):
        raise ValueError(f"{text!r} is no size above zero")
    return int(number * _UNITS[unit])


def show_bytes(count: float) -> str:
    """Return ``1.5 GiB`` for 1.5 × 2^30 bytes."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
