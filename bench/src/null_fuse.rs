//! The machine's limit for a mount: a file system in this process whose one file reads as zeros and
//! swallows what is written, without a pool behind it.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ramlace_base::{Error, Result};
use ramlace_fuse::{
    Attributes, Entry, FileSystem, MountOptions, OpenFlags, Operation, Reply, Request, Session, Workers,
};

use crate::args::Args;

/// The file's name.
pub const FILE: &str = "zeros";
const FILE_NODE: u64 = 2;

struct Null {
    bytes: u64,
}

/// Mounts on `--mount`, says so, and answers until standard input ends.
pub fn run(args: &Args) -> Result<()> {
    let directory: &Path = &args.mount;
    let options = MountOptions { source: "ramlace-bench-null".into(), ..MountOptions::default() };
    let session = Session::mount(directory, &options)?;
    let stopper = session.stopper();
    let tell = |error: std::io::Error| Error::from_io(&error, "saying that the null file system is mounted");
    println!("mounted");
    std::io::stdout().flush().map_err(tell)?;
    std::thread::spawn(move || {
        // Whatever it reads: the end is the end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.stop();
    });
    session.run(Arc::new(Null { bytes: args.bytes as u64 }), Workers::default()).map(drop)
}

impl Null {
    fn attributes(&self, node: u64) -> Attributes {
        let (mode, size) = match node {
            FILE_NODE => (libc::S_IFREG | 0o666, self.bytes),
            _ => (libc::S_IFDIR | 0o777, 0),
        };
        Attributes { ino: node, size, mode, links: 1, block_size: 4096, ..Attributes::default() }
    }
}

/// The kernel may keep everything: it is asked to drop what a round shall not find.
const VALID: Duration = Duration::from_secs(3600);

impl FileSystem for Null {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.operation {
            Operation::Lookup { name } if name == FILE.as_bytes() => {
                let attributes = self.attributes(FILE_NODE);
                reply.entry(&Entry {
                    node: FILE_NODE,
                    generation: 0,
                    attributes,
                    entry_valid: VALID,
                    attributes_valid: VALID,
                })
            }
            Operation::Lookup { .. } => reply.error(libc::ENOENT),
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                reply.attributes(&self.attributes(request.node), VALID)
            }
            Operation::Open { .. } => reply.opened(0, OpenFlags { keep_cache: true, ..OpenFlags::default() }),
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
