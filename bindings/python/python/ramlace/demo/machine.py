"""What the machine has, and what it can do at best: the limits beside the measurements."""

import ctypes
import mmap
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from ramlace.demo.problem import DemoError
from ramlace.demo.units import show_bytes

# Bytes of one copy when memcpy is measured: more than any cache holds.
COPY_BYTES = 256 << 20
# Bytes of one read when a file is brought into the page cache.
WARM_BYTES = 4 << 20


def facts() -> dict[str, Any]:
    """Return the machine's processor, cores, memory (bytes), kernel and versions, for the JSON."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    models = [line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _meminfo("MemTotal"),
        "available_bytes": available_bytes(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise DemoError(f"/proc/meminfo does not tell {name}")


def available_bytes() -> int:
    """Return the bytes of memory that can be taken now: the machine's, and below it the control group's."""
    found = _meminfo("MemAvailable")
    for directory in _control_groups():
        try:
            limit = (directory / "memory.max").read_text().strip()
            if limit != "max":
                stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
                used = int((directory / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
                found = min(found, int(limit) - used)
        except (OSError, ValueError):
            continue  # The root group has no limit and no such files.
    return max(found, 0)


def _control_groups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = [root / line[3:].lstrip("/") for line in lines if line.startswith("0::")]
    return [group for path in own for group in (path, *path.parents) if group.is_relative_to(root)]


def filesystem_of(path: Path) -> str:
    """Return the type of the file system that holds ``path``, such as ``ext4`` or ``tmpfs``."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[2] == wanted:
            return words[words.index("-") + 1]
    return "unknown"


def make_cold(path: Path) -> str:
    """Take a file's pages out of the page cache; return in a sentence how far that was verified."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return say_cold(path)


def say_cold(path: Path) -> str:
    """Return in a sentence how cold a file is: how much of it lies in the page cache."""
    resident = resident_bytes(path)
    if resident is None:
        return "cold cache asked for, but the kernel does not tell whether it is"
    if resident == 0:
        return "cold cache, verified by mincore"
    if resident * 100 <= path.stat().st_size:
        return f"cold cache but for {show_bytes(resident)}, by mincore"
    return f"NOT cold: {show_bytes(resident)} stayed in the page cache, by mincore"


def make_warm(path: Path) -> str:
    """Bring all of a file into the page cache; return in a sentence how far that was verified."""
    size = path.stat().st_size
    resident = resident_bytes(path)
    if resident is None or resident < size:
        block = bytearray(WARM_BYTES)
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass
        resident = resident_bytes(path)
    if resident is None:
        return "warm cache asked for, but the kernel does not tell whether it is"
    if resident >= size:
        return "warm cache, verified by mincore"
    if (size - resident) * 100 <= size:
        return f"warm cache but for {show_bytes(size - resident)}, by mincore"
    return f"NOT warm: {show_bytes(size - resident)} did not stay in the page cache, by mincore"


def resident_bytes(path: Path) -> int | None:
    """Return the bytes of a file's pages, counted whole, in the page cache; None where mincore does not report it."""
    size = path.stat().st_size
    if size == 0:
        return 0
    library = ctypes.CDLL(None, use_errno=True)
    pages = -(-size // mmap.PAGESIZE)
    marks = (ctypes.c_ubyte * pages)()
    # mmap keeps the address to itself unless the mapping can be written: a private one may.
    # It is not closed by name: a signal that ends the demo may come while something points into it, and a close would
    # then be an error that hides it.
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    first = ctypes.c_char.from_buffer(mapping)
    code = library.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), marks)
    if code != 0:
        return None
    return int(np.count_nonzero(np.frombuffer(memoryview(marks), dtype=np.uint8) & 1)) * mmap.PAGESIZE


def memcpy_seconds() -> float:
    """Return the seconds that copying COPY_BYTES takes: the best of 5, after a first that is dropped."""
    source = np.ones(COPY_BYTES // 8)
    target = np.empty_like(source)
    best = float("inf")
    for attempt in range(6):
        started = time.perf_counter()
        np.copyto(target, source)
        if attempt:
            best = min(best, time.perf_counter() - started)
    return best
