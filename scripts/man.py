"""Write manual pages from what the command's own help says, so that they cannot differ.

usage: man.py COMMAND DIRECTORY

COMMAND is the program; DIRECTORY gets `man1/ramlace.1`, one page for each of its commands, such as `man1/ramlace-cp.1`,
and `man8/mount.ramlace.8` for the program under the names by which mount(8) looks for it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

# clap's names of sections, as manual pages call them.
SECTIONS = {"Usage": "SYNOPSIS", "Commands": "COMMANDS", "Arguments": "ARGUMENTS", "Options": "OPTIONS"}
# What mount(8) calls the program by.
HELPERS = ("mount.ramlace", "mount.fuse.ramlace")
HEADING = re.compile(r"^(Usage|Commands|Arguments|Options|Examples|Exit codes):(?: +(.*))?$")


def help_of(program: str, *words: str, called: str | None = None) -> str:
    """Return what the help of a command says, in lines as long as a page's."""
    command = [called or program, *words, "--help"]
    return subprocess.run(
        command,
        executable=program,
        env={**os.environ, "COLUMNS": "78"},
        capture_output=True,
        text=True,
        check=True,
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


def head(program: str, names: tuple[str, ...], section: int, text: str) -> list[str]:
    """Return what a page begins with."""
    summary = text.split("\n", 1)[0].rstrip(".")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return [
        f'.TH "{names[0].upper()}" {section} "" "ramlace {version}" "ramlace"',
        ".SH NAME",
        f"{escaped(', '.join(names))} \\- {escaped(summary)}",
    ]


def helper_page(program: str) -> str:
    """Return the manual page of the program under the names that mount(8) has for it."""
    text = help_of(program, called=HELPERS[0])
    see = ["mount(8)", "fstab(5)", "autofs(5)", "ramlace\\-mount(1)"]
    pages = [*head(program, HELPERS, 8, text), *body(text, "DESCRIPTION")]
    return "\n".join([*pages, ".SH SEE ALSO", ",\n".join(see)]) + "\n"


def page(program: str, *words: str) -> str:
    """Return the manual page of a command, with the help of commands below it."""
    text = help_of(program, *words)
    pages = [*head(program, ("-".join(("ramlace", *words)),), 1, text), *body(text, "DESCRIPTION")]
    if words:
        for command in commands(text):
            pages += body(help_of(program, *words, command), f'"{escaped(" ".join((*words, command)).upper())}"')
        see = ["ramlace(1)"]
    else:
        see = [f"ramlace\\-{escaped(command)}(1)" for command in commands(text)]
    return "\n".join([*pages, ".SH SEE ALSO", ",\n".join(see)]) + "\n"


def main(program: str, directory: str) -> None:
    """Write all pages."""
    for_all, for_root = Path(directory, "man1"), Path(directory, "man8")
    for_all.mkdir(parents=True, exist_ok=True)
    for_root.mkdir(exist_ok=True)
    (for_all / "ramlace.1").write_text(page(program))
    for command in commands(help_of(program)):
        (for_all / f"ramlace-{command}.1").write_text(page(program, command))
    (for_root / f"{HELPERS[0]}.8").write_text(helper_page(program))
    (for_root / f"{HELPERS[1]}.8").write_text(f".so man8/{HELPERS[0]}.8\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
