//! Files that this machine's kernel reads and maps without asking (passthrough), where the mount was asked for it.
//!
//! The kernel goes one way with a file for as long as anybody has it open or mapped, and nobody tells when the last
//! mapping ends. So a file stays here until the kernel has forgotten its node, and is asked to forget it when the last
//! descriptor is closed. Until then the mount has the file open at its home, which knows that a kernel has it.
//!
//! Who opens it for reading alone reads from its server's memory; who may write does so by requests, so that memory and size
//! are the pool's affair, and maps the same memory. Nobody hears of stores into it: they move the time of the lane's
//! file, which is looked at when a program asks for attributes, syncs or closes.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId, limits};
use ramlace_client::File;
use ramlace_fuse::{Backing, BackingFiles, Notifier};

/// How long a file that nobody has open stays, at least, and how often the kernel is asked to forget it.
const PAUSE: Duration = Duration::from_millis(500);
/// In so many pauses the times of mapped files are looked at once, for programs that neither sync nor close.
const PAUSES_PER_LOOK: u32 = 10;

/// The files that the kernel has.
pub(crate) struct HandedFiles {
    kernel: Option<BackingFiles>,
    shared: Arc<Shared>,
}

struct Shared {
    notifier: Notifier,
    files: Mutex<HashMap<InodeId, Arc<Handed>>>,
    /// A file has come.
    came: Condvar,
    ended: AtomicBool,
}

/// One file.
#[derive(Default)]
struct Handed {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the kernel has; none before the first open has succeeded.
    kernel: Option<Known>,
    /// Descriptors of programs.
    opens: usize,
    /// It has left the table.
    gone: bool,
}

struct Known {
    backing: Backing,
    lane: OwnedFd,
    server: ServerId,
    /// Keeps it open at its home; opened for writing where somebody may.
    file: Arc<File>,
    /// The time of the lane's file when the home heard last.
    heard: (i64, u64),
}

impl HandedFiles {
    /// Without `kernel` no file is handed over.
    pub(crate) fn start(kernel: Option<BackingFiles>, notifier: Notifier) -> Result<HandedFiles> {
        let shared = Arc::new(Shared {
            notifier,
            files: Mutex::default(),
            came: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        if kernel.is_some() {
            let shared = Arc::downgrade(&shared);
            std::thread::Builder::new()
                .name("handed".into())
                .spawn(move || keep(&shared))
                .map_err(|error| Error::from_io(&error, "starting a thread for mapped files"))?;
        }
        Ok(HandedFiles { kernel, shared })
    }

    /// A program opens a file of so many bytes: the kernel's number of the file to which it goes. `None`: by the kernel's pages, as
    /// on any mount.
    pub(crate) fn open(&self, file: &Arc<File>, bytes: u64) -> Option<u32> {
        let kernel = self.kernel.as_ref()?;
        let inode = file.inode();
        loop {
            let handed =
                self.find_or_begin(inode, file.layout().width == 1 && bytes >= limits::HANDED_BYTES_MIN)?;
            let mut state = lock(&handed.state);
            if state.gone {
                continue;
            }
            let opened = state.open(kernel, file);
            match opened {
                Ok(backing) => {
                    state.opens += 1;
                    self.shared.came.notify_all();
                    return Some(backing);
                }
                // Sparse, elsewhere, or with a server that has no time: the usual way always works. Where programs have it
                // open by the other, the kernel tells this one EIO.
                Err(_) => {
                    if state.opens == 0 {
                        state.gone = true;
                        lock(&self.shared.files).remove(&inode);
                    }
                    return None;
                }
            }
        }
    }

    fn find_or_begin(&self, inode: InodeId, may_begin: bool) -> Option<Arc<Handed>> {
        let mut files = lock(&self.shared.files);
        if let Some(handed) = files.get(&inode) {
            return Some(handed.clone());
        }
        let room = files.len() < limits::HANDED_FILES_PER_MOUNT_MAX;
        (may_begin && room).then(|| files.entry(inode).or_default().clone())
    }

    /// A descriptor is closed by which the kernel went its way.
    pub(crate) fn close(&self, inode: InodeId) {
        if let Some(handed) = self.shared.get(inode) {
            let mut state = lock(&handed.state);
            state.opens = state.opens.saturating_sub(1);
        }
    }

    /// Tells the home of stores that have been made since it heard last.
    pub(crate) fn publish(&self, inode: InodeId) -> Result<()> {
        match self.shared.get(inode) {
            Some(handed) => lock(&handed.state).publish(),
            None => Ok(()),
        }
    }

    /// The kernel has forgotten a node, so nobody has it mapped.
    pub(crate) fn forgotten(&self, inode: InodeId) {
        let Some(handed) = self.shared.get(inode) else { return };
        let mut state = lock(&handed.state);
        if state.opens > 0 {
            // Somebody has found it again meanwhile.
            return;
        }
        state.gone = true;
        lock(&self.shared.files).remove(&inode);
        // A home that does not answer hears of the close later, and that a kernel had the file.
        let _ = state.publish();
    }

    /// The kernel has let go of the whole mount: nothing is mapped any more. What is not closed in this way stays
    /// noted at its home as a file that some kernel may still write.
    pub(crate) fn close_all(&self) {
        let files = std::mem::take(&mut *lock(&self.shared.files));
        for handed in files.values() {
            let _ = lock(&handed.state).publish();
        }
    }
}

impl Drop for HandedFiles {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.came.notify_all();
        // Mappings may outlive this process: their files must not be closed at their homes as if they had ended.
        std::mem::forget(std::mem::take(&mut *lock(&self.shared.files)));
    }
}

impl State {
    /// The kernel's number of the file, for one more open.
    fn open(&mut self, kernel: &BackingFiles, file: &Arc<File>) -> Result<u32> {
        let write = file.rights().write;
        let Some(known) = &mut self.kernel else {
            let handed = file.hand_over(write)?;
            let backing = kernel.register(&handed.lane)?;
            let id = backing.id();
            let heard = time_of(&handed.lane)?;
            self.kernel =
                Some(Known { backing, lane: handed.lane, server: handed.server, file: file.clone(), heard });
            return Ok(id);
        };
        if file.only_server()? != Some(known.server) {
            return Err(Error::new(ErrorKind::Lost, "what the kernel has was lost with its server"));
        }
        if !file.is_of_session_of(&known.file) {
            // This machine slept for longer than its session lives. The memory is the same, or else the kernel refuses.
            let handed = file.hand_over(write)?;
            known.lane = handed.lane;
            known.file = file.clone();
        } else if write && !known.file.rights().write {
            file.hand_over_for_writing()?;
            known.file = file.clone();
        }
        Ok(known.backing.id())
    }

    fn publish(&mut self) -> Result<()> {
        let Some(known) = self.kernel.as_mut().filter(|known| known.file.rights().write) else {
            return Ok(());
        };
        let now = time_of(&known.lane)?;
        if now != known.heard {
            match known.file.publish() {
                // The file was removed: there is no time to tell any more.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
            known.heard = now;
        }
        Ok(())
    }
}

impl Shared {
    fn get(&self, inode: InodeId) -> Option<Arc<Handed>> {
        lock(&self.files).get(&inode).cloned()
    }
}

/// Asks the kernel to forget what nobody has open, and looks at the times of the rest.
fn keep(shared: &Weak<Shared>) {
    for pause in 1u32.. {
        let Some(shared) = shared.upgrade() else { return };
        let mut files = lock(&shared.files);
        while files.is_empty() && !shared.ended.load(Ordering::Acquire) {
            files = shared.came.wait(files).unwrap_or_else(PoisonError::into_inner);
        }
        let all: Vec<(InodeId, Arc<Handed>)> =
            files.iter().map(|(inode, handed)| (*inode, handed.clone())).collect();
        drop(files);
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        for (inode, handed) in all {
            let idle = {
                let mut state = lock(&handed.state);
                if pause.is_multiple_of(PAUSES_PER_LOOK) {
                    let _ = state.publish();
                }
                state.opens == 0 && state.kernel.is_some()
            };
            // A kernel that cannot be asked (before Linux 6.18) forgets when it needs memory, or with the file's last name.
            if idle {
                let _ = shared.notifier.prune(inode.0);
            }
        }
        drop(shared);
        std::thread::sleep(PAUSE);
    }
}

/// When the lane's file was changed last: with the first store into each page of a mapping, and with each write.
fn time_of(lane: &OwnedFd) -> Result<(i64, u64)> {
    let stat = rustix::fs::fstat(lane)
        .map_err(|errno| Error::from_io(&errno.into(), "looking at the memory of a mapped file"))?;
    Ok((stat.st_mtime, stat.st_mtime_nsec))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
