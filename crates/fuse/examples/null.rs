//! A null FUSE file system: the machine's limit for any file system through a daemon.
//!
//! `null DIR [--option value]…` mounts one directory on DIR. A file's name is its size, such as `1GiB`, `64MiB-7` or
//! `4KiB`: every such file exists, reads as zeros from memory that is in the processor's caches, and swallows writes.
//! It is stateless and takes no lock. SIGTERM or an unmount ends it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ramlace_fuse::{
    Attributes, DirectoryBuffer, Entry, FileSystem, MountMethod, MountOptions, OpenFlags, Operation,
    ROOT_NODE, Reply, Request, Session, StatFs, Workers,
};

const USAGE: &str = "usage: null DIR [--cache cached|keep|direct] [--threads N] [--idle N] [--request-kib N]
            [--read-ahead-kib N] [--valid-seconds N] [--method auto|system|fusermount] [--allow-other yes]
  cached   the kernel caches pages until the next open
  keep     the kernel keeps cached pages over opens
  direct   reads and writes bypass the page cache, writes of one file in parallel";

/// A node is the file's size in these units, and a number that tells files of one size apart.
const SIZE_UNIT_BITS: u32 = 12;
const NUMBER_BITS: u32 = 16;
/// The root directory has number 1 of size 0.
const NUMBER_FIRST: u64 = 2;
const KIND_FILE: u32 = 0o100_000;
const KIND_DIRECTORY: u32 = 0o040_000;

struct Null {
    zeros: Vec<u8>,
    valid: Duration,
    open: OpenFlags,
    owner: (u32, u32),
}

/// `64MiB-7` is file 7 of 64 MiB.
fn node_of(name: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(name).ok()?;
    let (size, number) = name.split_once('-').unwrap_or((name, "0"));
    let digits = size.find(|letter: char| !letter.is_ascii_digit())?;
    let unit_bits = match &size[digits..] {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let bytes = size[..digits].parse::<u64>().ok()?.checked_mul(1 << unit_bits)?;
    let number = number.parse::<u64>().ok()?.checked_add(NUMBER_FIRST)?;
    let fits = bytes < 1 << (64 - NUMBER_BITS) && number < 1 << NUMBER_BITS;
    (fits && bytes % (1 << SIZE_UNIT_BITS) == 0).then_some(bytes >> SIZE_UNIT_BITS << NUMBER_BITS | number)
}

fn size_of_node(node: u64) -> u64 {
    node >> NUMBER_BITS << SIZE_UNIT_BITS
}

impl Null {
    fn attributes(&self, node: u64) -> Attributes {
        let (size, directory) = (size_of_node(node), node == ROOT_NODE);
        Attributes {
            ino: node,
            size,
            blocks: size / 512,
            mode: if directory { KIND_DIRECTORY | 0o755 } else { KIND_FILE | 0o644 },
            links: 1 + u32::from(directory),
            uid: self.owner.0,
            gid: self.owner.1,
            block_size: 1 << 20,
            ..Attributes::default()
        }
    }

    fn entry(&self, node: u64) -> Entry {
        let attributes = self.attributes(node);
        Entry { node, generation: 0, attributes, entry_valid: self.valid, attributes_valid: self.valid }
    }

    fn read(&self, node: u64, offset: u64, length: u32, reply: Reply) -> bool {
        let rest = size_of_node(node).saturating_sub(offset).min(u64::from(length));
        reply.data(&self.zeros[..usize::try_from(rest).unwrap_or(0).min(self.zeros.len())])
    }

    fn list(offset: u64, size: u32, reply: Reply) -> bool {
        let mut entries = DirectoryBuffer::new(size as usize);
        let names = [(&b"."[..], ROOT_NODE, KIND_DIRECTORY), (b"..", ROOT_NODE, KIND_DIRECTORY)];
        for (index, (name, node, kind)) in
            (1..).zip(names).skip(usize::try_from(offset).unwrap_or(usize::MAX))
        {
            if !entries.push(name, node, kind, index) {
                break;
            }
        }
        reply.directory(&entries)
    }
}

impl FileSystem for Null {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let node = request.node;
        match request.operation {
            Operation::Read { offset, length, .. } => self.read(node, offset, length, reply),
            Operation::Write { data, .. } => reply.written(u32::try_from(data.len()).unwrap_or(0)),
            Operation::Lookup { name } => match node_of(name) {
                Some(node) => reply.entry(&self.entry(node)),
                None => reply.error(libc::ENOENT),
            },
            Operation::Create { name, .. } => match node_of(name) {
                Some(node) => reply.created(&self.entry(node), 0, self.open),
                None => reply.error(libc::EINVAL),
            },
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                reply.attributes(&self.attributes(node), self.valid)
            }
            Operation::Open { .. } => reply.opened(0, self.open),
            Operation::OpenDirectory { .. } => reply.opened(0, OpenFlags::default()),
            Operation::ReadDirectory { offset, size, .. } => Null::list(offset, size, reply),
            Operation::Release { .. } | Operation::ReleaseDirectory { .. } | Operation::Fsync { .. } => {
                reply.ok()
            }
            Operation::StatFs => {
                reply.statfs(&StatFs { block_size: 1 << 20, name_bytes_max: 255, ..Default::default() })
            }
            // Once is enough: the kernel asks no more (of FLUSH, ACCESS, locks, attributes, READDIRPLUS).
            _ => reply.error(libc::ENOSYS),
        };
    }
}

struct Arguments {
    dir: PathBuf,
    options: MountOptions,
    workers: Workers,
    valid: Duration,
    open: OpenFlags,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut parsed = Arguments {
        dir: arguments.next()?.into(),
        options: MountOptions {
            source: "null".into(),
            subtype: "ramlace-null".into(),
            readdir_plus: false,
            ..Default::default()
        },
        workers: Workers::default(),
        valid: Duration::from_secs(1),
        open: OpenFlags::default(),
    };
    while let Some(option) = arguments.next() {
        let value = arguments.next()?;
        let number = || value.parse::<usize>().ok();
        match option.as_str() {
            "--cache" => match value.as_str() {
                "cached" => {}
                "keep" => parsed.open.keep_cache = true,
                "direct" => (parsed.open.direct_io, parsed.open.parallel_direct_writes) = (true, true),
                _ => return None,
            },
            "--threads" => parsed.workers.threads_max = number()?,
            "--idle" => parsed.workers.idle_threads_min = number()?,
            "--request-kib" => parsed.options.request_bytes_max = number()? << 10,
            "--read-ahead-kib" => parsed.options.read_ahead_bytes = number()? << 10,
            "--valid-seconds" => parsed.valid = Duration::from_secs(value.parse().ok()?),
            "--allow-other" => parsed.options.allow_other = value == "yes",
            "--method" => {
                parsed.options.method = match value.as_str() {
                    "auto" => MountMethod::Automatic,
                    "system" => MountMethod::SystemCall,
                    "fusermount" => MountMethod::Fusermount,
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
    Some(parsed)
}

/// Ends the session at SIGTERM and SIGINT, which no other thread takes.
fn stop_at_signals(session: &Session) {
    let stopper = session.stopper();
    // SAFETY: `set` is a valid set of signals when sigemptyset has run; the calls read and write nothing else.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        set
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both pointers are valid during the call.
        unsafe { libc::sigwait(&raw const set, &raw mut signal) };
        stopper.stop();
    });
}

fn run(arguments: &Arguments) -> ramlace_base::Result<()> {
    let session = Session::mount(&arguments.dir, &arguments.options)?;
    stop_at_signals(&session);
    // Written memory: pages never written would all be one page of zeros, which no real file system sends.
    let mut zeros = vec![1; session.request_bytes_max()];
    zeros.fill(0);
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let null = Null { zeros, valid: arguments.valid, open: arguments.open, owner };
    println!(
        "mounted: requests up to {} KiB, read-ahead {} KiB, FUSE 7.{}",
        session.request_bytes_max() >> 10,
        session.read_ahead_bytes().map_or("unknown".into(), |bytes| (bytes >> 10).to_string()),
        session.protocol_minor(),
    );
    session.run(Arc::new(null), arguments.workers).map(drop)
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("null: {error}");
            ExitCode::FAILURE
        }
    }
}
