//! `warm`: reads files of a mount once, so that their pages are in this machine's memory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ramlace_base::{Error, Result};
use rustix::fs::Advice;
use serde_json::json;

use crate::failure::{Done, Failure, say};
use crate::output::Output;
use crate::place::on_mounts;
use crate::progress::Progress;
use crate::show::escaped;

const EXAMPLES: &str = "\
Examples:
  ramlace warm /mnt/pool/matrix.bin     programs that map or read it now find it in this machine's memory
  ramlace warm /mnt/pool/data           all files below a directory

The pages stay as long as the machine has memory for them and nobody changes the file. They serve programs that use a
mount; the library reads from the servers' memory every time.";

/// Bytes of one read: as much as the kernel asks the mount for at once, several times over.
const PART_BYTES: usize = 4 << 20;

/// Arguments of `warm`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files on a mount, or directories with all that is in them; or as they are called in the pool
    #[arg(required = true, value_name = "FILE")]
    pub paths: Vec<OsString>,
}

/// Reads each file; continues after one that fails.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let mut warming = Warming { json: output.json, failed: false };
    let mut files = Vec::new();
    for path in &args.paths {
        match named_files(path, named) {
            Ok(paths) => paths.into_iter().for_each(|path| warming.gather(path, &mut files)),
            Err(error) => warming.say(&error, None),
        }
    }
    let total = sum(&files);
    let mut progress = Progress::new(output.json);
    let (mut done, mut count) = (0, 0_u64);
    for (path, _) in &files {
        match read(path, |bytes| {
            done += bytes;
            progress.update(done, Some(total));
        }) {
            Ok(()) => count += 1,
            Err(error) => warming.say(&error, Some(&progress)),
        }
    }
    drop(progress);
    if output.json {
        output.json(&json!({"files": count, "bytes": done}))?;
    }
    output.flush()?;
    if warming.failed { Err(Failure::Told) } else { Ok(()) }
}

struct Warming {
    json: bool,
    failed: bool,
}

impl Warming {
    fn say(&mut self, error: &Error, progress: Option<&Progress>) {
        self.failed = true;
        match progress {
            Some(progress) => progress.pause(|| say(error, self.json)),
            None => say(error, self.json),
        }
    }

    /// The files below a path with their sizes; links inside of a tree are left alone.
    fn gather(&mut self, path: PathBuf, files: &mut Vec<(PathBuf, u64)>) {
        let mut rest = vec![path];
        while let Some(path) = rest.pop() {
            match entries(&path) {
                Ok(Found::File(size)) => files.push((path, size)),
                Ok(Found::Directory(more)) => rest.extend(more),
                Ok(Found::Other) => {}
                Err(error) => self.say(&error, None),
            }
        }
    }
}

/// Sizes are what the programs that made the files have set: together they may be more than a number holds.
fn sum(files: &[(PathBuf, u64)]) -> u64 {
    files.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
}

enum Found {
    File(u64),
    Directory(Vec<PathBuf>),
    Other,
}

fn entries(path: &Path) -> Result<Found> {
    let tell = |error: std::io::Error| Error::from_io(&error, shown(path));
    let found = path.symlink_metadata().map_err(tell)?;
    if found.is_file() {
        return Ok(Found::File(found.len()));
    }
    if !found.is_dir() {
        return Ok(Found::Other);
    }
    let entries = std::fs::read_dir(path).map_err(tell)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(tell)?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    paths.reverse();
    Ok(Found::Directory(paths))
}

/// What is named, by each mount that has it; a link that is named is followed.
fn named_files(path: &OsStr, named: Option<&str>) -> Result<Vec<PathBuf>> {
    let follow =
        |path: PathBuf| std::fs::canonicalize(&path).map_err(|error| Error::from_io(&error, shown(&path)));
    on_mounts(path, named)?.into_iter().map(follow).collect()
}

/// Reads a file once; `done` is called with every part.
fn read(path: &Path, mut done: impl FnMut(u64)) -> Result<()> {
    let tell = |error: std::io::Error| Error::from_io(&error, format_args!("reading {}", shown(path)));
    let mut file = File::open(path).map_err(tell)?;
    // The kernel may begin to read ahead; where it does not, reading does it.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::WillNeed);
    let mut buffer = vec![0; PART_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => done(count as u64),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(tell(error)),
        }
    }
}

fn shown(path: &Path) -> String {
    escaped(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_sizes_have_a_sum() {
        let of = |sizes: &[u64]| sum(&sizes.iter().map(|size| (PathBuf::new(), *size)).collect::<Vec<_>>());
        assert_eq!((of(&[]), of(&[5, 7]), of(&[1 << 62; 5])), (0, 12, u64::MAX));
    }
}
