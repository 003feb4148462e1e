"""Print the requirements of some extras of a pyproject.toml, one on each line.

usage: requirements.py PYPROJECT EXTRA [EXTRA...]

pip installs extras only together with their package, and the package is built by maturin,
which is itself one of them.
"""

import sys
import tomllib
from pathlib import Path


def main(pyproject: str, *extras: str) -> None:
    """Print the requirements; KeyError names an extra that does not exist."""
    project = tomllib.loads(Path(pyproject).read_text())["project"]
    for requirement in project["dependencies"]:
        print(requirement)
    for extra in extras:
        print("\n".join(project["optional-dependencies"][extra]))


if __name__ == "__main__":
    main(*sys.argv[1:])
