//! Mounts a pool on a directory.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_client::{Broken, ConnectOptions, Doubt, Pool};
use ramlace_fuse::{
    BackingFiles, Ended, Flags, GuardCommand, Invalidation, MountPoint, Porter, Session, Stopper, Workers,
};
use ramlace_wire::Mode;
use ramlace_wire::leases::Leased;

use crate::droppers::Droppers;
use crate::handles::Handles;
use crate::kept_lists::KeptLists;
use crate::leases::Leases;
use crate::locks::Locks;
use crate::lost_stores::LostStores;
use crate::modes::Modes;
use crate::mounted::PoolFileSystem;
use crate::nodes::Nodes;
use crate::pages::Pages;
use crate::passthrough::PassthroughFiles;
use crate::refresh::Refresher;
use crate::removed::Removed;
use crate::space::Space;
use crate::strict::StrictReads;
use crate::versions::Versions;
use crate::write_errors::WriteErrors;

/// A thread that waits for a server answers nothing else until the deadline. 64 may wait for an unresponsive
/// server, and there are still as many for the others as they use at once. A thread takes at most two buffers
/// of a request.
const WORKERS: Workers = Workers { idle_threads_min: 4, threads_max: 96, reserved_threads: RESERVED_THREADS };

/// However many calls wait for other machines, this many reads into pages, and this many write-backs, are
/// answered: those machines may wait for them.
const RESERVED_THREADS: usize = 8;

/// The kernel counts buffered and direct reads among these requests: with fewer than there are threads,
/// readers that wait for one server would block all others in the kernel.
const BACKGROUND_REQUESTS_MAX: u16 = 256;

/// Pages that other kernels also have cannot be read ahead by a kernel that may store into them: the request
/// for them is wasted.
const STRICT_READ_AHEAD_BYTES: usize = 128 << 10;

/// What is mounted, and how.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent options")]
pub struct MountOptions {
    /// The empty directory on which the pool is mounted.
    pub directory: PathBuf,
    /// How to reach the pool.
    pub connect: ConnectOptions,
    /// What `mount` and `df` show as the device: `ramlace:POOL`.
    pub source: String,
    /// The flags that the kernel enforces on any mount: read-only, no set-user-id bits, no device files.
    pub flags: Flags,
    /// Every user of this machine may use the mount, and acts as themselves: by the pool's host key.
    pub allow_other: bool,
    /// Locks hold across the pool; without this every lock is refused.
    pub locks: bool,
    /// The kernel reads and maps files that lie entirely on this machine from the memory of their servers
    /// (root only, Linux 6.9).
    pub passthrough: bool,
    /// Setting a size allocates the memory of all that is new, or fails with ENOSPC.
    pub reserve: bool,
    /// Changes in directories that no other client uses are sent a moment after they are answered
    /// (delegations).
    pub behind: bool,
    /// When other machines see what programs here have stored, in files without a mode of their own.
    pub mode: Mode,
    /// How long each kind of request is delayed, for tests ([`Session::delay_by`]).
    pub delays: Option<Arc<File>>,
}

/// A mounted pool. Dropping it unmounts it.
pub struct Mount {
    session: Session,
    passthrough: Arc<PassthroughFiles>,
    file_system: Arc<PoolFileSystem>,
}

impl Mount {
    /// Connects the pool first, so that nothing is mounted that cannot answer; then mounts.
    ///
    /// Fails with the obstacle: no pool, no `/dev/fuse`, no fusermount3, a directory that is missing, not
    /// empty or mounted already.
    pub fn new(options: &MountOptions, porter: &Arc<Porter>) -> Result<Mount> {
        // Before any other thread is started, because threads inherit it. A failure is ignored: it only
        // matters in a control group of version 1 that limits the daemon together with its programs.
        let _ = ramlace_fuse::become_io_flusher();
        let behind = options.behind && !options.allow_other && !options.passthrough;
        let connect = ConnectOptions { for_users: options.allow_other, behind, ..options.connect.clone() };
        let pool = Pool::connect(&connect)?;
        let mut session = Session::mount_by(porter.clone(), &kernel_options(options))?;
        session.guard(porter)?;
        if let Some(delays) = &options.delays {
            let file = delays.try_clone();
            session.delay_by(file.map_err(|error| Error::from_io(&error, "keeping the file of delays"))?);
        }
        if options.mode == Mode::Strict {
            check_strict(&session, options)?;
        }
        let nodes = Arc::<Nodes>::default();
        let versions = Arc::new(Versions::new(&nodes));
        let write_errors = Arc::new(WriteErrors::new(&nodes));
        let pages = Arc::new(Pages::new(&nodes));
        let refresher = Refresher::start(&session.notifier(), &versions, &write_errors, &pages)?;
        let refresher = Arc::new(refresher);
        // Root of a host may be nobody in the pool, while the kernel lets it do anything: so the kernel has
        // to ask for each name.
        let names = session.has_epochs() && !options.allow_other;
        let leases = Arc::new(Leases::new(session.notifier(), &nodes, names));
        let handles = Arc::<Handles>::default();
        let (recalled, opened) = (leases.clone(), handles.clone());
        pool.on_recalls(Box::new(move |recalls| {
            let doubt = || {
                let of_attributes = recalls.iter().filter(|recall| recall.what == Leased::Attributes);
                of_attributes.for_each(|recall| opened.doubt(recall.inode));
            };
            doubt();
            recalled.recall(recalls);
            // What was kept of them until now may have been taken for new.
            doubt();
        }));
        let doubting = leases.clone();
        pool.on_doubts(Box::new(move |slot, doubt| doubting.doubt(slot, doubt)));
        let believing = leases.clone();
        let failures = write_errors.clone();
        pool.on_broken(Box::new(move |inode, broken| note_broken(&believing, &failures, inode, broken)));
        let modes = Arc::new(Modes::new(options.mode, session.has_direct_io_mmap(), &nodes));
        let strict = Arc::<StrictReads>::default();
        let droppers =
            Droppers::start(&pool, session.notifier(), (&pages, &versions), &strict, (&modes, &handles))?;
        let locks =
            Locks::new(options.locks, &nodes, (&versions, &handles), droppers.pending(), &refresher, porter);
        let kernel = if options.passthrough { Some(kernel_that_takes_files(&session)?) } else { None };
        let passthrough = Arc::new(PassthroughFiles::start(kernel, session.notifier())?);
        let file_system = PoolFileSystem {
            pool,
            for_users: options.allow_other,
            porter: porter.clone(),
            reserves: options.reserve,
            maps_direct_files: session.has_direct_io_mmap(),
            promises: behind,
            handles,
            versions,
            space: Space::default(),
            refresher,
            write_errors,
            lost_stores: LostStores::default(),
            locks,
            removed: Removed::new(&nodes),
            kept_lists: KeptLists::start(&leases)?,
            leases,
            nodes,
            pages,
            strict,
            modes,
            droppers,
            counts: session.counts(),
            passthrough: passthrough.clone(),
        };
        Ok(Mount { session, passthrough, file_system: Arc::new(file_system) })
    }

    /// The mount point, as the kernel lists it.
    #[must_use]
    pub fn mount_point(&self) -> &MountPoint {
        self.session.mount_point()
    }

    /// A handle that ends [`Mount::run`] from elsewhere, such as a signal.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.session.stopper()
    }

    /// Serves the kernel until the directory is unmounted, or the stopper was used.
    pub fn run(self) -> Result<Ended> {
        let passthrough = self.passthrough;
        let file_system = self.file_system.clone();
        let ended = self.session.run(self.file_system, WORKERS);
        if let Err(error) = file_system.raw().sync_all() {
            eprintln!("ramlace: what was written last could not be sent: {error}");
        }
        drop(file_system);
        if matches!(ended, Ok(Ended::Unmounted)) {
            passthrough.close_all();
        }
        ended
    }
}

/// A promised change was not done, or not as it was answered: nothing that its slot has answered is valid.
fn note_broken(leases: &Leases, failures: &WriteErrors, inode: InodeId, broken: &Broken) {
    if let Broken::Lost { error, directory } = broken {
        eprintln!("ramlace: inode {inode}: what was written last is lost: {error}");
        for inode in directory.iter().chain([&inode]) {
            failures.note(*inode, &Error::new(ErrorKind::Lost, error.message()));
        }
    }
    for doubt in [Doubt::Begins, Doubt::Ends] {
        leases.doubt(inode.slot(), doubt);
    }
}

/// Serves as the porter of a mount until its daemon ends; the daemon is at the other end of standard input.
/// Takes the daemon's options.
///
/// # Errors
/// When the process was not started as a porter.
pub fn run_porter(control: impl AsFd, options: &MountOptions, guard: GuardCommand) -> Result<()> {
    ramlace_fuse::run_porter(control, &options.directory, &kernel_options(options), guard)
}

fn kernel_options(options: &MountOptions) -> ramlace_fuse::MountOptions {
    ramlace_fuse::MountOptions {
        source: options.source.clone(),
        flags: options.flags,
        allow_other: options.allow_other,
        // When another machine has made a file longer, its former last page still shows zeros where there are
        // bytes now.
        invalidation: Invalidation::SizeChange,
        background_requests_max: BACKGROUND_REQUESTS_MAX,
        read_ahead_bytes: match options.mode {
            Mode::Coherent | Mode::Relaxed => ramlace_fuse::MountOptions::default().read_ahead_bytes,
            Mode::Strict => STRICT_READ_AHEAD_BYTES,
        },
        // A listing returns nothing that the kernel could cache: it does not check whether names were
        // recalled meanwhile.
        readdir_plus: false,
        passthrough: options.passthrough,
        access_lists: true,
        ..ramlace_fuse::MountOptions::default()
    }
}

/// Fails if a mount cannot be strict.
fn check_strict(session: &Session, options: &MountOptions) -> Result<()> {
    if options.passthrough {
        let text = "a mount is either strict or has --passthrough: stores into files that the kernel serves itself are not seen";
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    if !session.has_direct_io_mmap() {
        let text = "a strict mount needs Linux 6.6, where files that are written directly can be mapped; leave the mode \
                    out, and publish by msync";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok(())
}

/// Fails if the kernel, or its permission check, does not allow passthrough to this process.
fn kernel_that_takes_files(session: &Session) -> Result<BackingFiles> {
    let refused = |why: &str| {
        let text = format!(
            "--passthrough needs root and Linux 6.9: {why}; leave it out, everything works without it"
        );
        Error::new(ErrorKind::NotPermitted, text)
    };
    let files = session.backing_files().ok_or_else(|| refused("the kernel does not offer it here"))?;
    let probe = rustix::fs::memfd_create("ramlace-probe", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|errno| Error::from_io(&errno.into(), "making a file to try passthrough with"))?;
    files.register(&probe).map_err(|error| refused(error.message()))?;
    Ok(files)
}

/// Unmounts `directory`; with `detach` also when programs use it, which keep what they have open until they
/// close it.
pub fn unmount(directory: &Path, detach: bool) -> Result<()> {
    ramlace_fuse::unmount(directory, detach)
}
