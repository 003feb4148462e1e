//! `doctor --mpi`: which MPI a program uses, whether our MPI-IO library can stand before it, and what to do next.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ramlace_base::{Error, Result};

use super::doctor_checks::{Finding, State};
use super::mpirun::{LIBRARY_VARIABLE, Mpi, find_library};

/// What a routine of MPI-IO is called in whatever contains it.
const ROUTINE: &[u8] = b"PMPI_File_open";
/// What our library alone exports.
const OURS: &[u8] = b"ramlace_mpiio_opens";
const ELF: &[u8] = b"\x7fELF";

/// Everything that is checked about a program, up to the first obstacle.
pub fn checks(program: &Path) -> Result<Vec<Finding>> {
    let bytes = fs::read(program)
        .map_err(|error| Error::from_io(&error, format!("reading {}", program.display())))?;
    if !bytes.starts_with(ELF) {
        return Ok(vec![broken("program", of_script(program))]);
    }
    let Some(loaded) = Loaded::of(program)? else {
        let found = if contains(&bytes, ROUTINE) { static_mpi(program) } else { no_mpi(program) };
        return Ok(vec![broken("program", found)]);
    };
    let Some((mpi, theirs)) = loaded.mpi() else {
        let found = match loaded.missing_mpi() {
            Some(name) => format!("{name} is not found: load the module of its MPI, or set LD_LIBRARY_PATH"),
            None if contains(&bytes, ROUTINE) => static_mpi(program),
            None => no_mpi(program),
        };
        return Ok(vec![broken("MPI", found)]);
    };
    let mut findings = vec![ok("MPI", format!("{} ({})", mpi.name(), theirs.display()))];
    findings.extend(library(mpi, &theirs)?);
    if findings.iter().all(|finding| finding.state == State::Ok) {
        findings.push(ok("start", start(mpi, program)));
    }
    Ok(findings)
}

/// Our library for this MPI: there, loadable, and for the same library of MPI's.
fn library(mpi: Mpi, theirs: &Path) -> Result<Vec<Finding>> {
    let ours = match find_library(mpi) {
        Ok(ours) => ours,
        Err(error) => return Ok(vec![broken("library", error.to_string())]),
    };
    let shown = ours.display();
    let is_ours = fs::read(&ours).is_ok_and(|bytes| contains(&bytes, OURS));
    let Some(loaded) = is_ours.then(|| Loaded::of(&ours)).transpose()?.flatten() else {
        let found = format!(
            "{shown}, which {LIBRARY_VARIABLE} names, is no MPI-IO library of ramlace's; {}",
            mpi.build()
        );
        return Ok(vec![broken("library", found)]);
    };
    if let Some(name) = loaded.missing.first() {
        let found =
            format!("{shown} needs {name}, which is not found: install ramlace's C library beside it");
        return Ok(vec![broken("library", found)]);
    }
    let found = ok("library", shown.to_string());
    let same = match loaded.mpi() {
        Some((of_ours, path)) if of_ours != mpi => broken(
            "same MPI",
            format!("the library was built for {} ({}); {}", of_ours.name(), path.display(), mpi.build()),
        ),
        Some((_, path)) if !is_same_file(&path, theirs) => {
            broken("same MPI", format!("the library was built for {}; {}", path.display(), mpi.build()))
        }
        _ => ok("same MPI", "the library was built for it".to_owned()),
    };
    Ok(vec![found, same])
}

fn start(mpi: Mpi, program: &Path) -> String {
    let words = format!("-np 4 {} ramlace:/FILE", program.display());
    match mpi {
        // Any launcher may start such a program: the library does not show which.
        Mpi::Abi => format!("{LIBRARY_VARIABLE}=.../{} ramlace mpirun {words}", mpi.library()),
        Mpi::Ompi | Mpi::Mpich => format!("ramlace mpirun {words}"),
    }
}

fn of_script(program: &Path) -> String {
    format!(
        "{} is no program of the machine's own; name what calls MPI: for mpi4py what 'python3 -c \"import mpi4py.MPI as m; \
         print(m.__file__)\"' prints",
        program.display()
    )
}

fn static_mpi(program: &Path) -> String {
    format!(
        "{} has its MPI within itself (linked statically), so that nothing can stand before it: link it with MPI's shared \
         library, or name files below a mount ('ramlace mount DIR'), which needs no library",
        program.display()
    )
}

fn no_mpi(program: &Path) -> String {
    format!(
        "{} loads no MPI when it starts; where a module of it does so later, name that module's file",
        program.display()
    )
}

fn ok(name: &'static str, found: String) -> Finding {
    Finding { name, state: State::Ok, found }
}

fn broken(name: &'static str, found: String) -> Finding {
    Finding { name, state: State::Broken, found }
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((fs::canonicalize(one), fs::canonicalize(other)), (Ok(one), Ok(other)) if one == other)
}

/// The libraries that a program is loaded with.
#[derive(Debug, Default, PartialEq, Eq)]
struct Loaded {
    /// Their names and where they are.
    found: Vec<(String, PathBuf)>,
    missing: Vec<String>,
}

impl Loaded {
    /// As the dynamic loader says; nothing for a program that it does not load.
    fn of(file: &Path) -> Result<Option<Loaded>> {
        let file = fs::canonicalize(file)
            .map_err(|error| Error::from_io(&error, format!("finding {}", file.display())))?;
        let said = Command::new("ldd")
            .arg(&file)
            .env_remove("LD_PRELOAD")
            .output()
            .map_err(|error| Error::from_io(&error, "running ldd, which lists a program's libraries"))?;
        let text = String::from_utf8_lossy(&said.stdout);
        Ok(if said.status.success() { Loaded::parse(&text) } else { None })
    }

    /// Lines such as `libm.so.6 => /lib/libm.so.6 (0x7f...)` and `libx.so => not found`.
    fn parse(text: &str) -> Option<Loaded> {
        let mut loaded = Loaded::default();
        for line in text.lines() {
            if line.trim() == "statically linked" {
                return None;
            }
            let Some((name, place)) = line.trim().split_once(" => ") else { continue };
            match place.rsplit_once(" (") {
                Some((path, _)) => loaded.found.push((name.to_owned(), PathBuf::from(path))),
                None => loaded.missing.push(name.to_owned()),
            }
        }
        Some(loaded)
    }

    fn mpi(&self) -> Option<(Mpi, PathBuf)> {
        self.found.iter().find_map(|(name, path)| Some((mpi_named(name)?, path.clone())))
    }

    fn missing_mpi(&self) -> Option<&str> {
        self.missing.iter().map(String::as_str).find(|name| mpi_named(name).is_some())
    }
}

/// The MPI whose library has this name. Versions distinguish Open MPI's `libmpi` from MPICH's and those that
/// derive from it.
fn mpi_named(library: &str) -> Option<Mpi> {
    let (stem, version) = library.split_once(".so")?;
    match stem {
        "libmpi_abi" => Some(Mpi::Abi),
        "libmpich" => Some(Mpi::Mpich),
        "libmpi" => Some(if version == ".12" { Mpi::Mpich } else { Mpi::Ompi }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_that_the_loader_lists() {
        let text = "\tlinux-vdso.so.1 (0x7ffe)\n\tlibmpi.so.40 => /a b/libmpi.so.40 (0x7f10)\n\tlibx.so.1 => not found\n";
        let loaded = Loaded::parse(text).unwrap();
        assert_eq!(loaded.mpi(), Some((Mpi::Ompi, PathBuf::from("/a b/libmpi.so.40"))));
        assert_eq!(loaded.missing, ["libx.so.1"]);
        assert_eq!(Loaded::parse("\tstatically linked\n"), None);
    }

    #[test]
    fn each_mpi_is_known_by_its_library() {
        assert_eq!(mpi_named("libmpi.so.40"), Some(Mpi::Ompi));
        assert_eq!(mpi_named("libmpi.so.12"), Some(Mpi::Mpich));
        assert_eq!(mpi_named("libmpich.so.12"), Some(Mpi::Mpich));
        assert_eq!(mpi_named("libmpi_abi.so.1"), Some(Mpi::Abi));
        assert_eq!(mpi_named("libmpi_cxx.so.40"), None);
        assert_eq!(mpi_named("libm.so.6"), None);
    }

    #[test]
    fn an_mpi_that_is_not_found_is_named() {
        let loaded = Loaded::parse("\tlibmpi.so.40 => not found\n").unwrap();
        assert_eq!(loaded.missing_mpi(), Some("libmpi.so.40"));
    }
}
