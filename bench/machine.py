"""Facts about this machine that decide its figures; nothing that tells whose it is."""

import os
import platform
from pathlib import Path


def first_line(path: str) -> str:
    """Return a file's first line, or nothing where there is no such file."""
    try:
        return Path(path).read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""


def facts() -> dict:
    """Return cores, memory, kernel and the settings that count."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")]
    settings = "/sys/kernel/mm/transparent_hugepage"
    return {
        "cores": os.cpu_count(),
        "processor": cpu[0].split(":", 1)[1].strip() if cpu else platform.machine(),
        "memory_gib": round(int(memory[0].split()[1]) / 2**20, 1),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "transparent_hugepage": first_line(f"{settings}/enabled"),
        "shmem_enabled": first_line(f"{settings}/shmem_enabled"),
        "tcp_wmem": first_line("/proc/sys/net/ipv4/tcp_wmem"),
        "tcp_rmem": first_line("/proc/sys/net/ipv4/tcp_rmem"),
        "load_average": os.getloadavg()[0],
    }
