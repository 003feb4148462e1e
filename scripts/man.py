"""Write manual pages from what the command's own help says, so that they cannot differ.

usage: man.py COMMAND DIRECTORY

COMMAND is the program; DIRECTORY gets `ramlace.1`, and one page for each of its commands, such as `ramlace-cp.1`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

# clap's names of sections, as manual pages call them.
SECTIONS = {"Usage": "SYNOPSIS", "Commands": "COMMANDS", "Arguments": "ARGUMENTS", "Options": "OPTIONS"}
HEADING = re.compile(r"^(Usage|Commands|Arguments|Options|Examples|Exit codes):(?: +(.*))?$")


def help_of(program: str, *words: str) -> str:
    """Return what the help of a command says, in lines as long as a page's."""
    command = [program, *words, "--help"]
    return subprocess.run(
        command, env={**os.environ, "COLUMNS": "78"}, capture_output=True, text=True, check=True
    ).stdout


def commands(text: str) -> list[str]:
    """Return the names of the commands that a help lists."""
    listed = re.search(r"^Commands:\n((?:  .*\n|\n(?=  ))*)", text, re.MULTILINE)
    names = re.findall(r"^  ([a-z][a-z-]*) ", listed[1], re.MULTILINE) if listed else []
    return [name for name in names if name != "help"]


def escaped(line: str) -> str:
    """Return a line as roff takes it for what it is."""
    line = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{line}" if line.startswith(".") else line


def body(text: str, synopsis: str) -> list[str]:
    """Return a help as sections of a page; what stands before the first heading describes the command."""
    lines = [f".SH {synopsis}"]
    literal = False

    def end_literal() -> None:
        nonlocal literal
        if literal:
            lines.append(".fi")
            literal = False

    for line in text.rstrip("\n").split("\n"):
        heading = HEADING.match(line)
        if heading:
            end_literal()
            if lines[-1] == ".PP":
                lines.pop()
            lines.append(f".SH {SECTIONS.get(heading[1], heading[1].upper())}")
            if heading[2]:
                lines.append(escaped(heading[2]))
        elif line.startswith("  "):
            # Columns of options and examples stay as they are.
            if not literal:
                lines.append(".nf")
                literal = True
            lines.append(escaped(line))
        elif not line:
            lines.append("" if literal else ".PP")
        else:
            end_literal()
            lines.append(escaped(line))
    end_literal()
    return lines


def page(program: str, *words: str) -> str:
    """Return the manual page of a command, with the help of commands below it."""
    text = help_of(program, *words)
    name = "-".join(("ramlace", *words))
    summary = text.split("\n", 1)[0].rstrip(".")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    head = [
        f'.TH "{name.upper()}" 1 "" "ramlace {version}" "ramlace"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(summary)}",
    ]
    pages = [*head, *body(text, "DESCRIPTION")]
    if words:
        for command in commands(text):
            pages += body(help_of(program, *words, command), f'"{escaped(" ".join((*words, command)).upper())}"')
        see = ["ramlace(1)"]
    else:
        see = [f"ramlace\\-{escaped(command)}(1)" for command in commands(text)]
    return "\n".join([*pages, ".SH SEE ALSO", ",\n".join(see)]) + "\n"


def main(program: str, directory: str) -> None:
    """Write all pages."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    (target / "ramlace.1").write_text(page(program))
    for command in commands(help_of(program)):
        (target / f"ramlace-{command}.1").write_text(page(program, command))


if __name__ == "__main__":
    main(*sys.argv[1:])
