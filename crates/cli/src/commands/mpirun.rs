//! `mpirun`: an MPI program whose MPI-IO reaches pools itself.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::POOL_VARIABLE;

use crate::failure::Done;

const EXAMPLES: &str = "\
Examples:
  ramlace mpirun -np 4 ./app ramlace:/checkpoint      MPI_File_open(\"ramlace:/...\") of every rank reaches the pool
  ramlace mpirun -np 4 python3 app.py                 mpi4py and h5py as well; paths below a mount, too
  ramlace mpirun --launcher mpiexec.mpich -n 2 ./app  another launcher than the mpirun in PATH

Runs the launcher with everything that follows, and lets the ranks, and them alone, load the MPI-IO library that was built
for its MPI (bindings/mpi/build.sh MPICC DIRECTORY). It is looked for beside this command, in ../lib, and where
RAMLACE_MPIIO_LIBRARY says.";

/// Names the library, where it is not beside the command.
pub(super) const LIBRARY_VARIABLE: &str = "RAMLACE_MPIIO_LIBRARY";
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// Arguments of `mpirun`.
#[derive(clap::Args, Debug)]
// `-h` begins `-host`, which is the launcher's.
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct Args {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,

    /// The launcher
    #[arg(long, value_name = "COMMAND", default_value = "mpirun")]
    launcher: OsString,

    /// What the launcher is given: its options, the program, and the program's words
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<OsString>,
}

/// The MPIs whose launchers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mpi {
    Ompi,
    Mpich,
    /// The standard's own binary interface, which several implement.
    Abi,
}

impl Mpi {
    /// The file of our library for it.
    pub(super) fn library(self) -> &'static str {
        match self {
            Mpi::Ompi => "libramlace_mpiio_ompi.so",
            Mpi::Mpich => "libramlace_mpiio_mpich.so",
            Mpi::Abi => "libramlace_mpiio_abi.so",
        }
    }

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mpi::Ompi => "Open MPI",
            Mpi::Mpich => "MPICH, or one that derives from it",
            Mpi::Abi => "MPI's standard binary interface",
        }
    }

    /// How our library for it is made.
    pub(super) fn build(self) -> &'static str {
        match self {
            Mpi::Ompi | Mpi::Mpich => {
                "build it with 'bindings/mpi/build.sh MPICC DIRECTORY' and the program's own mpicc"
            }
            Mpi::Abi => "build it with 'bindings/mpi/build.sh mpicc_abi DIRECTORY'",
        }
    }

    /// By what a launcher says of its version.
    fn of_version(text: &str) -> Option<Mpi> {
        if text.contains("Open MPI") || text.contains("OpenRTE") || text.contains("PRRTE") {
            return Some(Mpi::Ompi);
        }
        let derived = ["HYDRA", "MPICH", "Intel(R) MPI"];
        derived.iter().any(|name| text.contains(name)).then_some(Mpi::Mpich)
    }

    /// The launcher's words that set a variable for the ranks.
    fn setting(self, variable: &str, value: &OsStr) -> Vec<OsString> {
        match self {
            Mpi::Ompi => {
                let mut pair = OsString::from(format!("{variable}="));
                pair.push(value);
                vec!["-x".into(), pair]
            }
            Mpi::Mpich | Mpi::Abi => vec!["-genv".into(), variable.into(), value.into()],
        }
    }
}

/// Becomes the launcher.
pub fn run(args: &Args, named: Option<&str>) -> Done {
    let mpi = mpi_of(&args.launcher)?;
    let library = find_library(mpi)?;
    let mut command = Command::new(&args.launcher);
    command.args(mpi.setting(PRELOAD_VARIABLE, &preload(&library)));
    if let Some(named) = named {
        command.args(mpi.setting(POOL_VARIABLE, OsStr::new(named)));
    }
    let error = command.args(&args.words).exec();
    Err(Error::from_io(&error, format!("running {}", args.launcher.display())).into())
}

fn mpi_of(launcher: &OsStr) -> Result<Mpi> {
    let said = Command::new(launcher).arg("--version").output();
    let said = said.map_err(|error| Error::from_io(&error, format!("running {}", launcher.display())))?;
    let text = String::from_utf8_lossy(&said.stdout);
    Mpi::of_version(&text).ok_or_else(|| {
        let first = text.lines().next().unwrap_or("nothing");
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{} --version says '{first}': neither Open MPI nor MPICH; name another by --launcher, or set {PRELOAD_VARIABLE} \
                 for the ranks yourself",
                launcher.display()
            ),
        )
    })
}

/// What the ranks load: ours first, then what was to be loaded anyway.
fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = env::var_os(PRELOAD_VARIABLE).filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    value
}

/// Our library for this MPI, where the user says or beside this command.
pub(super) fn find_library(mpi: Mpi) -> Result<PathBuf> {
    if let Some(named) = env::var_os(LIBRARY_VARIABLE).filter(|named| !named.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    let command = env::current_exe().map_err(|error| Error::from_io(&error, "finding this command"))?;
    let beside = command.parent().unwrap_or(Path::new("/"));
    let places = [beside.to_owned(), beside.join("../lib")];
    let found = places.iter().map(|place| place.join(mpi.library())).find(|path| path.is_file());
    found.ok_or_else(|| {
        let compiler = if mpi == Mpi::Abi { "mpicc_abi" } else { "mpicc" };
        Error::new(
            ErrorKind::NotFound,
            format!(
                "{} is not beside {}; build it with 'bindings/mpi/build.sh {compiler} {}', or name it by {LIBRARY_VARIABLE}",
                mpi.library(),
                command.display(),
                beside.display()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_what_they_say() {
        assert_eq!(Mpi::of_version("mpirun.openmpi (OpenRTE) 4.1.4\n"), Some(Mpi::Ompi));
        assert_eq!(Mpi::of_version("mpirun (Open MPI) 5.0.1\n"), Some(Mpi::Ompi));
        assert_eq!(Mpi::of_version("HYDRA build details:\n    Version: 4.0.2\n"), Some(Mpi::Mpich));
        let intel = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1\n";
        assert_eq!(Mpi::of_version(intel), Some(Mpi::Mpich));
        assert_eq!(Mpi::of_version("srun 22.05"), None);
    }

    #[test]
    fn each_launcher_sets_variables_in_its_way() {
        let value = OsStr::new("/a b.so");
        assert_eq!(Mpi::Ompi.setting("LD_PRELOAD", value), ["-x", "LD_PRELOAD=/a b.so"]);
        assert_eq!(Mpi::Mpich.setting("LD_PRELOAD", value), ["-genv", "LD_PRELOAD", "/a b.so"]);
    }
}
