"""What scripts/knots.py takes for a dependency between the files of a crate, and for a knot."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import knots


def needs(root: Path, **files: str) -> set[str]:
    """Write the files of a crate, `a__b` for a/b.rs, and return which depends on which, as `a>b`."""
    for name, text in files.items():
        file = root / f"{name.replace('__', '/')}.rs"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    found = knots.Crate(root / "lib.rs").needs()

    def shown(file: Path) -> str:
        return str(file.relative_to(root).with_suffix(""))

    return {f"{shown(file)}>{shown(other)}" for file, others in found.items() for other in others}


AB = "mod a; mod b;"


@pytest.mark.parametrize(
    "code",
    [
        "use crate::b::Thing;",
        "use crate::{b::{self, Thing as Other}};",
        "use super::b::{\n    other,\n    Thing,\n};",
        "use crate::b; fn f() { b::other() }",
        "use crate::b::*; fn f(_: Thing) {}",
        "fn f() { crate::b::other() }",
        "fn f<'a>(x: &'a str) -> char { let _ = '\"'; let _ = super::b::other; 'a' }",
        "impl crate::b::Thing { fn more() {} }",
        "mod inner { use crate::b::Thing; }",
        "mod inner { use super::super::b::Thing; fn f() { self::super::super::b::other() } }",
        "fn f() { for _ in 0..crate::b::most() {} }",
        "use crate::b::Made; use crate::c::Thing as _;",
        "use crate::c::Thing as _; use crate::b::Thing as _;",
        'const X: &str = r#"a " quote"#; use crate::b::Thing;',
    ],
)
def test_what_names_a_thing_of_another_file_depends_on_it(tmp_path: Path, code: str) -> None:
    assert needs(tmp_path, lib=AB, a=code, b="pub struct Thing; pub fn other() {}") == {"a>b"}


@pytest.mark.parametrize(
    "code",
    [
        "// use crate::b::Thing;",
        "/* crate::b::other() */",
        'const X: &str = "crate::b::other()";',
        "#[cfg(test)]\nuse crate::b::Thing;",
        "#[cfg(test)]\n#[allow(dead_code)]\nfn f(x: u8) { crate::b::other() }",
        "#[cfg(test)]\nmod tests { use crate::b::Thing; }",
        '#[cfg(test)]\n#[path = "b.rs"]\nmod tests;',
        "use std::b::Thing; fn f(x: b) { x.crate_b() }",
    ],
)
def test_comments_strings_tests_and_other_crates_are_no_dependencies(tmp_path: Path, code: str) -> None:
    assert needs(tmp_path, lib=AB, a=code, b="pub struct Thing; pub fn other() {}") == set()


def test_names_are_followed_to_the_file_that_defines_them(tmp_path: Path) -> None:
    found = needs(
        tmp_path,
        lib="mod a; mod room; pub use room::Thing;",
        a="use crate::Thing; use crate::room::other;",
        room="pub mod b; pub use b::{Thing, other};",
        room__b="pub struct Thing; pub fn other() {}",
    )
    assert found == {"lib>room/b", "a>room/b", "room>room/b"}
    tied = needs(
        tmp_path,
        lib="mod room;",
        room="mod b; mod c; pub use b::Thing; pub const MOST: u32 = 1;",
        room__b="use super::MOST; use super::c::other; pub struct Thing;",
        room__c="use super::Thing; pub fn other() {}",
    )
    assert tied == {"room>room/b", "room/b>room", "room/b>room/c", "room/c>room/b"}


def test_files_that_depend_on_each_other_are_one_knot(tmp_path: Path) -> None:
    for name, on in {"a": "b", "b": "c", "c": "a", "d": "a", "e": "f", "f": "e"}.items():
        (tmp_path / f"{name}.rs").write_text(f"use crate::{on}::Thing as Other; pub struct Thing;")
    (tmp_path / "lib.rs").write_text("mod a; mod b; mod c; mod d; mod e; mod f;")
    found = knots.knots(knots.Crate(tmp_path / "lib.rs").needs())
    assert [sorted(file.stem for file in knot) for knot in found] == [["a", "b", "c"], ["e", "f"]]


def test_no_crate_has_a_knot_that_is_larger_than_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert knots.main([]) == 0, capsys.readouterr().out
