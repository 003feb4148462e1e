"""What the tests of the package share: a pool of their own, and hypothesis' profiles."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import ramlace

settings.register_profile("everyday", max_examples=50, deadline=None, database=None)
settings.register_profile("long", max_examples=2000, deadline=None, database=None)
settings.load_profile("long" if os.environ.get("RAMLACE_TEST_LONG") else "everyday")


@pytest.fixture(scope="session")
def pool_name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running pool of 3 servers in a runtime directory of its own."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    # Paths of sockets are short: the directory is made where names are.
    directory = tmp_path_factory.mktemp("run")
    directory.chmod(0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(directory)
    name = f"py{os.getpid()}"
    pool = ramlace.up(name, servers=3, memory="576MiB")
    try:
        yield name
    finally:
        pool.down()
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before


@pytest.fixture(params=[True, False], ids=["local", "tcp"])
def pool(request: pytest.FixtureRequest, pool_name: str) -> Iterator[ramlace.Pool]:
    """A connection to that pool: with the machine's shortcuts, and again without."""
    with ramlace.connect(pool_name, local=request.param) as connected:
        yield connected


@pytest.fixture
def place(pool: ramlace.Pool, request: pytest.FixtureRequest) -> Iterator[str]:
    """A directory in the pool for one test, removed afterwards."""
    name = "/" + "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:200]
    pool.mkdir(name)
    try:
        yield name
    finally:
        pool.rmtree(name)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of one test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
