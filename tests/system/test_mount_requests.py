"""What programs on a mount cost: requests of the kernel, by its names, and messages to the servers."""

import os
from collections import Counter
from pathlib import Path

from conftest import NewPool
from mount import NewMount

REQUESTS_ATTRIBUTE = "user.ramlace.requests"


def asked(mount: Path) -> Counter[str]:
    """Return how many requests of each kind the kernel has sent."""
    lines = os.getxattr(mount, REQUESTS_ATTRIBUTE).decode().splitlines()
    return Counter({name: int(count) for name, count in (line.split() for line in lines)})


def test_a_mount_tells_how_many_requests_of_each_kind_came(new_pool: NewPool, new_mount: NewMount) -> None:
    mount = new_mount(new_pool(1))
    before = asked(mount.directory)
    assert before["GETXATTR"] >= 1, "also this one"
    for number in range(3):
        (mount / f"f{number}").write_bytes(b"some bytes")
    after = asked(mount.directory) - before
    assert (after["CREATE"], after["WRITE"], after["FLUSH"]) == (3, 3, 3)
    assert "UNLINK" not in after
