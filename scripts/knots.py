"""Knots: files of a crate that depend on each other in cycles. A knot is read and changed as one, so it stays small.

usage: knots.py [--all] [CRATE...]    --all prints each dependency within a knot, and the names that make it

A file depends on another when its code names something that is defined there: in a `use` (groups, `super::`, `self::`,
new names), in a path amid the code (`crate::leases::Table`, `leases::Table`), or by giving functions to its type
(`impl SlotState`). Names are followed through `use` and `pub use` to the file that defines them, so a re-export neither
hides a dependency nor makes one; what a macro defines is found behind its module's name. What is compiled for tests
alone is left out. Calls of methods are not followed: whoever has a value may call what its type has, wherever that
stands. So files that give functions to one type may need each other without a knot.

Fails when a knot has more than FILES_MAX files.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES_MAX = 4
# Of names that stand for names.
DEPTH_MAX = 32

COMMENT = r"//[^\n]*|/\*.*?\*/"
RAW = r"""\bb?r(?P<marks>\#*)".*?"(?P=marks)"""
STRING = rf"""{RAW}|(?:\b[bc])?"(?:\\.|[^"\\])*"|\bb'\\?.'|'(?:\\u\{{\w+\}}|\\x\w\w|\\.|[^'\\\n])'"""
# A lifetime is one word, so that it is no name; a string is one, which `#[path]` needs.
WORD = re.compile(rf"{COMMENT}|(?P<word>{STRING}|(?:r\#|')?[A-Za-z_]\w*|::|\d\w*|\S)", re.DOTALL)
NAME = re.compile(r"(?:r#)?[A-Za-z_]\w*")
FOR_TESTS = ["#", "[", "cfg", "(", "test", ")", "]"]
DEFINING = {"struct", "enum", "fn", "const", "static", "type", "trait", "union"}

Names = tuple[str, ...]
# On which files each file depends, and what it names there.
Needs = dict[Path, dict[Path, set[str]]]


@dataclass
class Module:
    """A module of a crate: a file, or a part of one."""

    place: Names
    file: Path
    # Where `mod x;` in it looks for x.rs.
    folder: Path
    defined: set[str] = field(default_factory=set)
    # What `use` brings into it, by the name it has here; what it brings with a star.
    imported: dict[str, Names] = field(default_factory=dict)
    starred: list[Names] = field(default_factory=list)
    # All paths in its code, those of `use` too, and macros that it calls.
    paths: set[Names] = field(default_factory=set)
    macros: set[str] = field(default_factory=set)


class Crate:
    """The modules of a crate."""

    def __init__(self, top: Path) -> None:
        self.modules: dict[Names, Module] = {}
        self.macros: dict[str, Path] = {}
        self._read(Module((), top, top.parent))

    def _read(self, module: Module) -> None:
        words = [found["word"] for found in WORD.finditer(module.file.read_text()) if found["word"]]
        self._take(module, without_tests(words))

    def _take(self, module: Module, words: list[str]) -> None:
        """Take in a module's code: what it defines, what it brings in, what it names, and its own modules."""
        self.modules[module.place] = module
        at = depth = 0
        said = None
        while at < len(words):
            word, after = words[at], words[at + 1 : at + 3]
            if words[at : at + 4] == ["#", "[", "path", "="]:
                said = words[at + 4].strip('"')
            elif word == "mod" and len(after) == 2 and after[1] in {";", "{"}:
                at = self._module(module, words, at, said)
                said = None
                continue
            elif word == "use" and after[0] != "<":
                end = words.index(";", at)
                bring(module, (), words[at + 1 : end])
                at = end
            elif word in DEFINING and depth == 0 and after and NAME.fullmatch(after[0]):
                module.defined.add(after[0])
            elif word == "macro_rules":
                self.macros[words[at + 2]] = module.file
                at += 3
                continue
            elif NAME.fullmatch(word) and (words[at - 1 : at] != ["."] or words[at - 2 : at] == [".", "."]):
                names = [word]
                while words[at + 1 : at + 2] == ["::"] and NAME.fullmatch(words[at + 2]):
                    names.append(words[at + 2])
                    at += 2
                if words[at + 1 : at + 2] == ["!"]:
                    module.macros.add(names[-1])
                module.paths.add(tuple(names))
            depth += (word == "{") - (word == "}")
            at += 1

    def _module(self, parent: Module, words: list[str], at: int, said: str | None) -> int:
        """Take in the module that is declared at a place; return where the code goes on."""
        name = words[at + 1]
        parent.defined.add(name)
        place, folder = (*parent.place, name), parent.folder / name
        if words[at + 2] == "{":
            end = closing(words, at + 2)
            self._take(Module(place, parent.file, folder), words[at + 3 : end])
            return end + 1
        if said:
            file = parent.file.parent / said
            self._read(Module(place, file, file.parent))
        else:
            beside = parent.folder / f"{name}.rs"
            self._read(Module(place, beside if beside.exists() else folder / "mod.rs", folder))
        return at + 3

    def needs(self) -> Needs:
        """Return on which files each file depends, and what it names there."""
        needs: Needs = {module.file: {} for module in self.modules.values()}
        for module in self.modules.values():
            # A module that is brought in is named again where something in it is used.
            for names in module.paths:
                place = self.place(module, names)
                if place is not None and place not in self.modules:
                    needs[module.file].setdefault(self.modules[place[:-1]].file, set()).add(place[-1])
            for macro in module.macros & self.macros.keys():
                needs[module.file].setdefault(self.macros[macro], set()).add(f"{macro}!")
            needs[module.file].pop(module.file, None)
        return needs

    def place(self, module: Module, names: Names, depth: int = 0) -> Names | None:
        """Return the place of what `names` means in a module: a module's own, or its module's and its name."""
        found = self._place(module, names, depth) if depth <= DEPTH_MAX else None
        if found is None and len(names) > 1 and depth <= DEPTH_MAX:
            # What no code defines in a module that there is: a macro does.
            behind = self._place(module, names[:-1], depth)
            return (*behind, names[-1]) if behind in self.modules else None
        return found

    def _place(self, module: Module, names: Names, depth: int) -> Names | None:
        first, *rest = names
        if first == "crate":
            return self._within((), rest, depth)
        if first in {"self", "super"}:
            place = module.place[: len(module.place) - (first == "super")]
            if rest[:1] == ["super"]:
                return self._place(self.modules[place], tuple(rest), depth)
            return self._within(place, rest, depth)
        if first in module.defined or first in module.imported:
            return self._within(module.place, names, depth)
        for star in module.starred:
            target = self.place(module, star, depth + 1)
            if target in self.modules and (found := self._within(target, names, depth + 1)):
                return found
        return None

    def _within(self, place: Names, names: Names | list[str], depth: int) -> Names | None:
        """Return the place of `names` as seen from a module's own place."""
        if not names:
            return place
        module, first, rest = self.modules[place], names[0], tuple(names[1:])
        if (*place, first) in self.modules:
            return self._within((*place, first), rest, depth)
        if first in module.defined:
            return (*place, first)
        if first in module.imported:
            brought = module.imported[first]
            # `use names::Rename` in the file that says `mod names`, or another crate's.
            return self.place(module, (*brought, *rest), depth + 1) if brought != (first,) else None
        for star in module.starred:
            target = self.place(module, star, depth + 1)
            if target in self.modules and (found := self._within(target, names, depth + 1)):
                return found
        return None


def closing(words: list[str], at: int) -> int:
    """Return where the bracket closes that opens at a place."""
    depth = 0
    for here in range(at, len(words)):
        depth += (words[here] in "([{") - (words[here] in ")]}")
        if depth == 0:
            return here
    raise ValueError("a bracket is not closed")


def without_tests(words: list[str]) -> list[str]:
    """Return the code without the items that are compiled for tests alone."""
    kept: list[str] = []
    at = 0
    while at < len(words):
        if words[at : at + len(FOR_TESTS)] != FOR_TESTS:
            kept.append(words[at])
            at += 1
            continue
        # An item ends with a semicolon, or with the brace that closes it; a field or an arm with a comma.
        while words[at] not in {";", ",", "{"}:
            at = closing(words, at) if words[at] in {"(", "["} else at
            at += 1
        at = (closing(words, at) if words[at] == "{" else at) + 1
    return kept


def bring(module: Module, before: Names, words: list[str]) -> None:
    """Note what one tree of a `use` brings into a module."""
    names = list(before)
    for at, word in enumerate(words):
        if word == "{":
            for tree in parts(words[at + 1 : closing(words, at)]):
                bring(module, tuple(names), tree)
            return
        if word == "*":
            module.starred.append(tuple(names))
            return
        if word == "as":
            note(module, words[at + 1], tuple(names))
            return
        if word != "::" and not (word == "self" and names):
            names.append(word)
    note(module, names[-1], tuple(names))


def note(module: Module, name: str, names: Names) -> None:
    """Note what a name means that a `use` has brought into a module."""
    module.imported[name] = names
    module.paths.add(names)


def parts(words: list[str]) -> Iterator[list[str]]:
    """Yield what commas part, those within braces aside."""
    part: list[str] = []
    depth = 0
    for word in words:
        depth += (word == "{") - (word == "}")
        if word == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(word)
    if part:
        yield part


def reached(needs: Needs, start: Path) -> set[Path]:
    """Return the files that a file depends on, through others too."""
    found: set[Path] = set()
    ahead = [start]
    while ahead:
        for file in needs[ahead.pop()]:
            if file not in found:
                found.add(file)
                ahead.append(file)
    return found


def knots(needs: Needs) -> list[set[Path]]:
    """Return the sets of files that depend on each other, the largest first."""
    reach = {file: reached(needs, file) for file in needs}
    found = {frozenset(other for other in reach[file] if file in reach[other]) for file in needs}
    return sorted((set(knot) for knot in found if len(knot) > 1), key=len, reverse=True)


def shown(crate: str, src: Path, knot: set[Path], needs: Needs, *, ties: bool) -> Iterator[str]:
    """Yield the lines that tell of a knot."""
    names = {file: str(file.relative_to(src).with_suffix("")) for file in knot}
    word = "ok" if len(knot) <= FILES_MAX else f"more than {FILES_MAX}"
    yield f"{crate}: {len(knot)} files ({word}): {' '.join(sorted(names.values()))}"
    for file in sorted(knot) if ties or len(knot) > FILES_MAX else ():
        for other in sorted(needs[file].keys() & knot):
            yield f"    {names[file]} -> {names[other]}: {' '.join(sorted(needs[file][other]))}"


def main(words: list[str]) -> int:
    """Print the knots of crates; return 1 when one is too large."""
    wanted = [word for word in words if not word.startswith("-")]
    failed = False
    folders = sorted((ROOT / "crates").iterdir())
    if unknown := set(wanted) - {folder.name for folder in folders}:
        sys.exit(f"there is no crate of this name: {' '.join(sorted(unknown))}")
    for folder in folders:
        src = folder / "src"
        tops = [src / name for name in ("lib.rs", "main.rs") if (src / name).exists()]
        for top in tops if folder.name in wanted or not wanted else ():
            needs = Crate(top).needs()
            for knot in knots(needs):
                if len(knot) <= FILES_MAX and "--large" in words:
                    continue
                failed |= len(knot) > FILES_MAX
                for line in shown(folder.name, src, knot, needs, ties="--all" in words):
                    print(line)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
