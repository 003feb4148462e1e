"""What a server costs beside its store: memory under load, processor time at rest."""

import time

import numpy as np
import pytest

import clients
from conftest import NewPool
from pool import KIB, MIB, eventually, pattern

# Half of what is promised for any load; 4 MiB were measured, and a leak shall be seen early.
PRIVATE_BYTES_MAX = 16 * MIB
# "An idle server uses at most 10 ms of CPU a minute."
IDLE_SECONDS_PER_MINUTE = 0.010


def test_a_servers_memory_beside_its_store_stays_small(new_pool: NewPool) -> None:
    running = new_pool(2, 192)
    with running.connect() as near, running.connect(local=False) as far:
        for connected, name in ((near, "near"), (far, "far")):
            connected.mkdir(f"/{name}")
            for number in range(1500):
                with connected.open(f"/{name}/{number}", "wb", buffering=0) as file:
                    file.write(pattern(number, 3000))
            with connected.open(f"/{name}/big", "wb", buffering=0) as file:
                for part in range(10):
                    file.pwrite(pattern(part, 10 * MIB), part * 10 * MIB)
            assert len(connected.open(f"/{name}/big").read()) == 100 * MIB
        near.array("/array", (MIB,), "float64").view()[:] = 1
        assert far.array("/array").view().sum() == MIB
        clients.run_all(
            *(
                (clients.write_every_nth, running.name, nth % 2 == 0, "/far/big", nth, 6, 64 * KIB, 600)
                for nth in range(6)
            )
        )
        costs = {}
        for server in range(2):
            for role in ("supervisor", "child"):
                costs[role, server] = running.process(role, server).private_bytes()
        print({f"{role} {server}": f"{bytes_ / MIB:.2f} MiB" for (role, server), bytes_ in costs.items()})
        for server in range(2):
            total = costs["supervisor", server] + costs["child", server]
            assert total <= PRIVATE_BYTES_MAX, f"server {server} takes {total / MIB:.1f} MiB"
        for name in ("near", "far"):
            near.rmtree(f"/{name}")
        assert np.all(far.array("/array").view() == 1)


@pytest.mark.alone(reason="the processor time of servers at rest is measured")
def test_rest_costs_a_server_nothing(new_pool: NewPool) -> None:
    running = new_pool(2, 192)
    with running.connect() as near, running.connect(local=False) as far:
        for connected, name in ((near, "near"), (far, "far")):
            connected.mkdir(f"/{name}")
            for number in range(100):
                with connected.open(f"/{name}/{number}", "wb", buffering=0) as file:
                    file.write(pattern(number, 3000))
        near.array("/array", (MIB,), "float64").view()[:] = 1
        assert far.array("/array").view().sum() == MIB
    # Without sessions nothing ticks.
    assert eventually(lambda: all(server["sessions"] <= 1 for server in running.status()))
    time.sleep(0.5)
    processes = running.processes()
    before = [process.cpu_seconds() for process in processes]
    begun = time.monotonic()
    time.sleep(3.0)
    seconds = time.monotonic() - begun
    for process, used in zip(processes, before, strict=True):
        minute = (process.cpu_seconds() - used) / seconds * 60
        print(f"{process.role} {process.server} at rest: {1000 * minute:.2f} ms of CPU a minute")
        # Asserted with much room: the measurement is short, and the machine does other things.
        assert minute < 20 * IDLE_SECONDS_PER_MINUTE
