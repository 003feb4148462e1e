"""C programs, compiled as strictly as the compiler can."""

import os
import subprocess
from pathlib import Path

STRICT = ("-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c99")


def flags(directory: Path) -> list[str]:
    """Return what pkg-config says of the library whose ramlace.pc lies there."""
    done = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "ramlace"],
        env={**os.environ, "PKG_CONFIG_PATH": str(directory)},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.split()


def compile_c(output: Path, sources: list[Path], *options: str) -> Path:
    """Compile a C program as strictly as the compiler can."""
    done = subprocess.run(
        ["cc", *STRICT, *map(str, sources), *options, "-o", str(output)], capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    return output
