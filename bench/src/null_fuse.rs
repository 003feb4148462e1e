//! The machine's limits for a mount: a file system in this process without a pool behind it. Files read as zeros and
//! swallow what is written; another, where root and the kernel make it possible, is a tmpfs file that the kernel
//! uses without asking (passthrough).

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ramlace_base::{Error, Result};
use ramlace_fuse::{
    Attributes, Backing, BackingFiles, Entry, FileSystem, MountOptions, OpenFlags, Operation, Reply, Request,
    Session, Workers,
};

use ramlace_store::StoreRoot;

use crate::args::Args;
use crate::region::huge_file;

/// The names of the files of zeros.
pub const FILES: [&str; 2] = ["zeros", "more-zeros"];
/// The name of the file under passthrough; there is none where that is not possible.
pub const PASSTHROUGH_FILE: &str = "passthrough";
const FILE_NODES: [u64; FILES.len()] = [2, 3];
const PASSTHROUGH_NODE: u64 = 4;

struct Null {
    bytes: u64,
    passthrough: Option<PassedFile>,
}

/// A tmpfs file that the kernel knows.
struct PassedFile {
    backing: Backing,
    _file: File,
    _root: StoreRoot,
}

impl PassedFile {
    fn new(files: &BackingFiles, bytes: usize) -> Result<PassedFile> {
        let (root, file) = huge_file(bytes)?;
        Ok(PassedFile { backing: files.register(&file)?, _file: file, _root: root })
    }
}

/// Mounts on `--mount`, says so, and answers until standard input ends.
pub fn run(args: &Args) -> Result<()> {
    let directory: &Path = &args.mount;
    let options =
        MountOptions { source: "ramlace-bench-null".into(), passthrough: true, ..MountOptions::default() };
    let session = Session::mount(directory, &options)?;
    let passthrough = session.backing_files().and_then(|files| {
        PassedFile::new(&files, args.bytes).inspect_err(|error| eprintln!("no passthrough: {error}")).ok()
    });
    answer_until_the_end(session, Null { bytes: args.bytes as u64, passthrough }, Workers::default())
}

/// Says that it is mounted, and answers until standard input ends.
pub fn answer_until_the_end<F: FileSystem>(session: Session, null: F, workers: Workers) -> Result<()> {
    let stopper = session.stopper();
    let tell = |error: std::io::Error| Error::from_io(&error, "saying that the null file system is mounted");
    println!("mounted");
    std::io::stdout().flush().map_err(tell)?;
    std::thread::spawn(move || {
        // Whatever it reads: the end is the end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.stop();
    });
    session.run(Arc::new(null), workers).map(drop)
}

impl Null {
    fn attributes(&self, node: u64) -> Attributes {
        let (mode, size) = match node {
            node if FILE_NODES.contains(&node) || node == PASSTHROUGH_NODE => {
                (libc::S_IFREG | 0o666, self.bytes)
            }
            _ => (libc::S_IFDIR | 0o777, 0),
        };
        Attributes { ino: node, size, mode, links: 1, block_size: 4096, ..Attributes::default() }
    }
}

/// The kernel may keep everything: it is asked to drop what a round shall not find.
const VALID: Duration = Duration::from_secs(3600);

impl Null {
    fn lookup(&self, name: &[u8], reply: Reply) -> bool {
        let is_named = |(file, _): &(&str, u64)| file.as_bytes() == name;
        let node = match std::iter::zip(FILES, FILE_NODES).find(is_named) {
            Some((_, node)) => node,
            None if name == PASSTHROUGH_FILE.as_bytes() && self.passthrough.is_some() => PASSTHROUGH_NODE,
            None => return reply.error(libc::ENOENT),
        };
        let attributes = self.attributes(node);
        reply.entry(&Entry { node, generation: 0, attributes, entry_valid: VALID, attributes_valid: VALID })
    }

    fn open(&self, node: u64) -> OpenFlags {
        match &self.passthrough {
            Some(passthrough) if node == PASSTHROUGH_NODE => {
                OpenFlags { passthrough: Some(passthrough.backing.id()), ..OpenFlags::default() }
            }
            _ => OpenFlags { keep_cache: true, ..OpenFlags::default() },
        }
    }
}

impl FileSystem for Null {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.operation {
            Operation::Lookup { name } => self.lookup(name, reply),
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                reply.attributes(&self.attributes(request.node), VALID)
            }
            Operation::Open { .. } => reply.opened(0, self.open(request.node)),
            Operation::OpenDirectory { .. } => reply.opened(0, OpenFlags::default()),
            // What is in the scratch memory is zeros: nobody here ever writes to it.
            Operation::Read { offset, length, .. } => {
                let there = self.bytes.saturating_sub(offset).min(length.into());
                reply.data(request.scratch.bytes(there as usize))
            }
            Operation::Write { data, .. } => reply.written(data.len() as u32),
            Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::Release { .. }
            | Operation::ReleaseDirectory { .. } => reply.ok(),
            _ => reply.error(libc::ENOSYS),
        };
    }
}
