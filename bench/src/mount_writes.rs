//! Sequential writes of 1 MiB through a mount by descriptors that can only write, as those of `cp`, `dd` and `tar`, beside
//! a null file system that swallows what is written, and a tmpfs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ramlace_base::{Error, Result};
use serde_json::Value;

use crate::args::Args;
use crate::clock::Processes;
use crate::null_fuse;
use crate::rounds::{Extra, Side, measure};

const CALL_BYTES: usize = 1 << 20;
const FILE_BYTES_MAX: usize = 256 << 20;
const NAMES: [&str; 2] = ["bench-written", "bench-written-too"];

/// What the files are like before they are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// They are not there.
    Missing,
    /// They have all their bytes.
    Whole,
    /// And the kernel has read them all: the mount's own pages are recalled.
    Read,
}

/// Directories in which files are written.
pub struct Writes<'a> {
    pub args: &'a Args,
    pub here: &'a Processes,
    pub bytes: usize,
    pub mount: &'a Path,
    pub null: &'a Path,
}

impl Writes<'_> {
    /// Files that were not there before.
    pub fn fresh(&self) -> Result<Option<Value>> {
        self.row("mount, sequential write, fresh", 1, Before::Missing)
    }

    /// Files that have all their bytes already.
    pub fn over_old_bytes(&self) -> Result<Option<Value>> {
        self.row("mount, sequential write, over old bytes", 1, Before::Whole)
    }

    /// Files that this very machine has read.
    pub fn over_what_was_read(&self) -> Result<Option<Value>> {
        self.row("mount, sequential write, over what was read here", 1, Before::Read)
    }

    /// Two files at once, which were not there before.
    pub fn by_two(&self) -> Result<Option<Value>> {
        self.row("mount, sequential write, two programs", NAMES.len(), Before::Missing)
    }

    fn row(&self, name: &str, programs: usize, before: Before) -> Result<Option<Value>> {
        if !self.args.wants(name) {
            return Ok(None);
        }
        let bytes = self.bytes.min(FILE_BYTES_MAX) / programs;
        let (written, nothing) = (&NAMES[..programs], &null_fuse::FILES[..programs]);
        let null: Vec<PathBuf> = nothing.iter().map(|name| self.null.join(name)).collect();
        let mounted: Vec<PathBuf> = written.iter().map(|name| self.mount.join(name)).collect();
        let own = |name: &&str| PathBuf::from(format!("/dev/shm/{name}-{}", std::process::id()));
        let tmpfs: Vec<PathBuf> = written.iter().map(own).collect();
        if before != Before::Missing {
            self.write(&mounted, bytes, Before::Missing)?;
            self.write(&tmpfs, bytes, Before::Missing)?;
        }
        let sides = vec![
            // It has its files always, and no bytes in them.
            self.side("null FUSE", || self.write(&null, bytes, Before::Whole)),
            self.side("/dev/shm", || self.write(&tmpfs, bytes, before)),
            self.side("figure", || self.write(&mounted, bytes, before)),
        ];
        let figure = measure(self.args, name, "bytes", (bytes * programs) as f64, sides);
        for file in mounted.iter().chain(&tmpfs) {
            std::fs::remove_file(file).map_err(|error| failed(&error, "removing a file"))?;
        }
        figure.map(Some)
    }

    /// Writes files, each by a thread, and closes them. What has to be done before takes no time.
    fn write(&self, paths: &[PathBuf], bytes: usize, before: Before) -> Result<Extra> {
        match before {
            // The first time there are none.
            Before::Missing => paths.iter().for_each(|path| _ = std::fs::remove_file(path)),
            Before::Whole => {}
            Before::Read => paths.iter().try_for_each(|path| read_all(path))?,
        }
        let cpu = self.here.cpu_seconds()?;
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let threads: Vec<_> = paths
                .iter()
                .map(|path| scope.spawn(|| write_all(path, bytes, before == Before::Missing)))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a writer does not panic"))
        })?;
        let (seconds, cpu) = (begun.elapsed().as_secs_f64(), self.here.cpu_seconds()? - cpu);
        Ok(vec![("seconds", seconds), ("cpu_seconds", cpu)])
    }

    fn side<'b>(&'b self, name: &'b str, work: impl FnMut() -> Result<Extra> + 'b) -> Side<'b> {
        Side { name, processes: self.here, work: Box::new(work) }
    }
}

fn write_all(path: &Path, bytes: usize, is_new: bool) -> Result<()> {
    let write = || {
        let file = File::options().write(true).create(is_new).open(path)?;
        let content = vec![7; CALL_BYTES];
        (0..bytes).step_by(CALL_BYTES).try_for_each(|offset| {
            file.write_all_at(&content[..CALL_BYTES.min(bytes - offset)], offset as u64)
        })
    };
    write().map_err(|error| failed(&error, &format!("writing {}", path.display())))
}

fn read_all(path: &Path) -> Result<()> {
    let read = || std::io::copy(&mut File::open(path)?, &mut std::io::sink());
    read().map(drop).map_err(|error| failed(&error, &format!("reading {}", path.display())))
}

fn failed(error: &std::io::Error, what: &str) -> Error {
    Error::from_io(error, what)
}
