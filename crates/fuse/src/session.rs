//! A mounted file system, and the loop that reads its requests.

use std::fs::File;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use ramlace_base::{Error, ErrorKind, Result};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{self, InitOut, OutHeader};
use crate::buffer::RequestBuffer;
use crate::decode::{Body, Init, decode};
use crate::delays::Delays;
use crate::device::Device;
use crate::dropped::Dropped;
use crate::guard::Guard;
use crate::init::{Agreed, agree, request_pages_limit};
use crate::mount::{check_mount_point, mount, take_away};
use crate::mounts::{MountPoint, mount_on};
use crate::notifier::Channel;
use crate::porter::Porter;
use crate::workers::{Control, Pool, lost};
use crate::{BackingFiles, FileSystem, MountOptions, Notifier, RequestCounts, Workers, bdi};

/// Why [`Session::run`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The kernel has ended the connection: the mount is gone, or somebody has aborted it.
    Unmounted,
    /// [`Stopper::stop`] was called.
    Stopped,
}

/// A mount whose requests this process answers. Dropping it takes the mount away (lazily), unless the kernel has ended the
/// connection: then the mount is gone. After an abort (by root, `/sys/fs/fuse/connections`) a dead one stays, which
/// [`crate::unmount`] takes away: the kernel tells a daemon the same of both, and by now another mount on this directory may have the
/// device's number.
#[derive(Debug)]
pub struct Session {
    device: Option<Arc<Device>>,
    mounted: MountPoint,
    agreed: Agreed,
    read_ahead_problem: Option<String>,
    control: Arc<Control>,
    counts: Arc<RequestCounts>,
    guard: Option<Arc<Guard>>,
    dropped: Arc<Dropped>,
    delays: Option<Arc<Delays>>,
    /// The process that mounts and unmounts; none: this one does.
    porter: Option<Arc<Porter>>,
    /// The kernel has ended the connection, and the number of the mount's device may be another one's by now.
    gone: bool,
}

impl Session {
    /// Mounts on `dir` and agrees with the kernel on a version; nothing is answered before [`Session::run`].
    ///
    /// # Errors
    /// They say what to do: about the directory, the device, fusermount3 or /etc/fuse.conf.
    pub fn mount(dir: &Path, options: &MountOptions) -> Result<Session> {
        let dir = check_mount_point(dir, options)?;
        let options = options.within_limits();
        let device = Device::new(mount(&dir, &options)?);
        Session::begin(&dir, device, &options, None)
    }

    /// The same by a porter, which has these options, and takes the mount away: this process need not be able to.
    ///
    /// # Errors
    /// As [`Session::mount`].
    pub fn mount_by(porter: Arc<Porter>, options: &MountOptions) -> Result<Session> {
        let (dir, device) = porter.mount()?;
        Session::begin(&dir, Device::new(device), &options.within_limits(), Some(porter))
    }

    fn begin(
        dir: &Path,
        device: Device,
        options: &MountOptions,
        porter: Option<Arc<Porter>>,
    ) -> Result<Session> {
        let page_bytes = rustix::param::page_size();
        let mut session = Session::find(dir, device, porter)?;
        session.greet(options, page_bytes, request_pages_limit())?;
        // The greeting can only lower the read-ahead, so it is raised afterwards.
        session.read_ahead_problem =
            bdi::set_read_ahead(session.mounted.device, options.read_ahead_bytes).err();
        Ok(session)
    }

    fn find(dir: &Path, device: Device, porter: Option<Arc<Porter>>) -> Result<Session> {
        let vanished =
            || Error::new(ErrorKind::Stale, format!("the mount on {} vanished at once", dir.display()));
        Ok(Session {
            mounted: mount_on(dir)?.ok_or_else(vanished)?,
            device: Some(Arc::new(device)),
            agreed: Agreed { minor: 0, request_bytes_max: 0, flags: 0 },
            read_ahead_problem: None,
            control: Arc::default(),
            counts: Arc::default(),
            guard: None,
            dropped: Arc::default(),
            delays: None,
            porter,
            gone: false,
        })
    }

    /// Reads the kernel's greeting and answers it. The kernel queues every other request until then.
    fn greet(&mut self, options: &MountOptions, page_bytes: usize, pages_limit: usize) -> Result<()> {
        let mut buffer = RequestBuffer::new(0)?;
        loop {
            let (unique, theirs) = self.read_greeting(&mut buffer)?;
            if theirs.major < abi::MAJOR || (theirs.major == abi::MAJOR && theirs.minor < abi::MINOR_MIN) {
                let (major, minor) = (theirs.major, theirs.minor);
                let message =
                    format!("this kernel speaks FUSE {major}.{minor}; 7.31 is needed (Linux 5.4 or newer)");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            if theirs.major > abi::MAJOR {
                // The kernel then greets again, in our version.
                self.send_greeting(
                    unique,
                    &InitOut { major: abi::MAJOR, minor: abi::MINOR_MAX, ..Default::default() },
                )?;
                continue;
            }
            let (agreed, ours) = agree(&theirs, options, page_bytes, pages_limit);
            self.agreed = agreed;
            return self.send_greeting(unique, &ours);
        }
    }

    fn read_greeting(&self, buffer: &mut RequestBuffer) -> Result<(u64, Init)> {
        loop {
            let bytes = match self.device().read(buffer.as_mut()) {
                Ok(bytes) => bytes,
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                Err(errno) => return Err(Error::from_io(&errno.into(), "reading the kernel's greeting")),
            };
            match decode(&buffer.as_mut()[..bytes]) {
                Ok(message) if matches!(message.body, Body::Forget { .. }) => {}
                Ok(message) => match message.body {
                    Body::Init(init) => return Ok((message.unique, init)),
                    _ => {
                        return Err(Error::new(
                            ErrorKind::Protocol,
                            "the kernel did not begin with a greeting",
                        ));
                    }
                },
                Err(_) => {
                    return Err(Error::new(ErrorKind::Protocol, "the kernel's greeting makes no sense"));
                }
            }
        }
    }

    fn send_greeting(&self, unique: u64, ours: &InitOut) -> Result<()> {
        let len = (size_of::<OutHeader>() + size_of::<InitOut>()) as u32;
        let header = OutHeader { len, error: 0, unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(ours.as_bytes())];
        self.device()
            .write(&parts)
            .map_err(|errno| Error::from_io(&errno.into(), "answering the kernel's greeting"))
    }

    fn device(&self) -> &Arc<Device> {
        self.device.as_ref().expect("the device is there until the session is dropped")
    }

    /// Answers requests until the mount is gone or [`Stopper::stop`]; waits for handlers under way, then calls
    /// [`FileSystem::destroy`].
    ///
    /// # Errors
    /// When the device fails, or not even one thread can be started.
    pub fn run<F: FileSystem>(mut self, file_system: Arc<F>, workers: Workers) -> Result<Ended> {
        let pool = Pool::start(
            file_system,
            Arc::clone(self.device()),
            Arc::clone(&self.control),
            Arc::clone(&self.counts),
            self.delays.clone(),
            workers,
            self.agreed.request_bytes_max,
        )?;
        let stopped = self.control.wait();
        if stopped {
            // While the workers still answer: dirty pages of mappings are written back by the unmount.
            let unmounted = self.take_away();
            pool.file_system().unmounted();
            self.control.end_workers();
            unmounted?;
        }
        let (failure, file_system) = (pool.take_failure(), pool.file_system());
        drop(pool);
        self.gone = failure.is_none();
        drop(self);
        file_system.destroy();
        match failure {
            Some(error) => Err(lost(&error)),
            None if stopped => Ok(Ended::Stopped),
            None => Ok(Ended::Unmounted),
        }
    }

    /// Takes the mount away if it is still the one that this session made.
    fn take_away(&self) -> Result<()> {
        if let Some(porter) = &self.porter {
            return match porter.unmount(true) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                told => told,
            };
        }
        match mount_on(&self.mounted.dir)? {
            Some(mount) if mount.device == self.mounted.device => take_away(&mount, true),
            _ => Ok(()),
        }
    }

    /// Notifies the kernel of what to forget; it does nothing once the session has ended.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        let channel = match &self.guard {
            Some(guard) => Channel::Guarded(Arc::downgrade(guard)),
            None => Channel::Here(Arc::downgrade(self.device())),
        };
        Notifier { channel, delays: self.delays.clone(), dropped: self.dropped.clone() }
    }

    /// From now on requests, their answers and [`Session::notifier`]'s drops wait as this file says: four bytes for each kind of operation
    /// (`delays.rs`). For tests.
    pub fn delay_by(&mut self, file: File) {
        self.delays = Some(Arc::new(Delays::new(file)));
    }

    /// From now on [`Session::notifier`] sends its notifications through the guard ([`Guard`]), which the porter starts. This
    /// process can then be killed at any time, and programs get errors instead of hanging.
    ///
    /// # Errors
    /// When it cannot be started, or this process may not open the device a second time.
    pub fn guard(&mut self, porter: &Arc<Porter>) -> Result<()> {
        let guard = Guard::start(porter.clone(), self.device(), self.agreed.request_bytes_max)?;
        self.guard = Some(Arc::new(guard));
        Ok(())
    }

    /// Registers files with the kernel, where passthrough was agreed on.
    #[must_use]
    pub fn backing_files(&self) -> Option<BackingFiles> {
        let agreed = self.agreed.flags & abi::init::PASSTHROUGH != 0;
        agreed.then(|| BackingFiles { device: Arc::downgrade(self.device()) })
    }

    /// Ends [`Session::run`] from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { control: Arc::clone(&self.control) }
    }

    /// How many requests came, counted from now on as well.
    #[must_use]
    pub fn counts(&self) -> Arc<RequestCounts> {
        Arc::clone(&self.counts)
    }

    /// What was mounted, as the kernel lists it.
    #[must_use]
    pub fn mount_point(&self) -> &MountPoint {
        &self.mounted
    }

    /// Largest READ and WRITE that was agreed on, in bytes.
    #[must_use]
    pub fn request_bytes_max(&self) -> usize {
        self.agreed.request_bytes_max
    }

    /// The protocol's minor version that was agreed on.
    #[must_use]
    pub fn protocol_minor(&self) -> u32 {
        self.agreed.minor
    }

    /// [`Notifier::increment_epoch`] is known to the kernel.
    #[must_use]
    pub fn has_epochs(&self) -> bool {
        self.agreed.has_epochs()
    }

    /// Files opened with `direct_io` may be mapped.
    #[must_use]
    pub fn has_direct_io_mmap(&self) -> bool {
        self.agreed.flags & abi::init::DIRECT_IO_ALLOW_MMAP != 0
    }

    /// Read-ahead that the mount has now, in bytes, where sysfs reports it.
    #[must_use]
    pub fn read_ahead_bytes(&self) -> Option<u64> {
        bdi::read_ahead_bytes(self.mounted.device)
    }

    /// Why the read-ahead could not be set as asked; ordinary users may not.
    #[must_use]
    pub fn read_ahead_problem(&self) -> Option<&str> {
        self.read_ahead_problem.as_deref()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Without its last descriptor the connection is over, and the unmount waits for nobody.
        self.device = None;
        if let Some(guard) = self.guard.take() {
            guard.end();
        }
        if self.gone {
            return;
        }
        if let Err(error) = self.take_away() {
            eprintln!("ramlace-fuse: {error}");
        }
    }
}

/// Ends [`Session::run`]. The mount itself is taken away, lazily: programs that still use its files get ENOTCONN.
#[derive(Clone, Debug)]
pub struct Stopper {
    control: Arc<Control>,
}

impl Stopper {
    /// Asks for the end; returns at once. Dirty pages of mappings are written back, handlers under way finish.
    pub fn stop(&self) {
        self.control.stop();
    }
}
