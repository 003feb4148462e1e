//! Passthrough, where the mount was asked for it: files that this machine's kernel reads and maps without
//! asking.
//!
//! The kernel accesses a file either by passthrough or through its pages, for as long as any program has it
//! open or mapped, and does not report when the last mapping ends. So a file stays in this table until the
//! kernel has forgotten its node, and the kernel is asked to forget it when the last descriptor is closed.
//! Until then the mount has the file open at its home, which knows that a kernel has it.
//!
//! An open for reading only reads from its server's memory. An open for writing writes by requests, so that
//! memory and size stay under the pool's control, and maps the same memory. Stores into mappings are not
//! reported; they change the modification time of the lane's file, which is checked when a program asks for
//! attributes, syncs or closes.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, InodeId, Result, ServerId, Timestamp, limits};
use ramlace_client::{File, LaneHere};
use ramlace_fuse::{Backing, BackingFiles, Notifier};
use ramlace_sync::{Condvar, Mutex, MutexGuard};

use crate::mtime_poll::{MtimePoll, PAUSE};

/// The files under passthrough.
pub(crate) struct PassthroughFiles {
    kernel: Option<BackingFiles>,
    shared: Arc<Shared>,
}

struct Shared {
    notifier: Notifier,
    table: Mutex<Table>,
    /// A file was added.
    came: Condvar,
    ended: AtomicBool,
}

#[derive(Default)]
struct Table {
    /// The files that the kernel has, or is about to get.
    passthrough: HashMap<InodeId, Arc<PassthroughFile>>,
    /// By file of one lane that is not under passthrough: how often it is open. It may have grown since, and
    /// stays so until no program has it open.
    plain: HashMap<InodeId, usize>,
}

/// One file under passthrough. Lock order: `state`, then [`Shared::table`] or those of [`crate::nodes`], never the other way
/// round. The file is closed after both.
#[derive(Default)]
struct PassthroughFile {
    state: Mutex<State>,
    /// An open that has asked servers is over.
    asked: Condvar,
}

#[derive(Default)]
struct State {
    /// What the kernel has; `None` before the first open has succeeded.
    kernel: Option<Known>,
    /// Descriptors of programs.
    opens: usize,
    /// An open asks servers, without the lock: it stays in the table, and others that ask wait for their turn.
    asking: bool,
    /// The kernel has forgotten the node since the last open. It may report that before the last close.
    forgotten: bool,
    /// It has left the table.
    gone: bool,
}

struct Known {
    backing: Backing,
    server: ServerId,
    kept: Kept,
}

/// Reports stores to the home.
#[derive(Clone)]
struct Kept {
    /// Keeps it open at its home; open for writing if a program has it open for writing.
    file: Arc<File>,
    lane: Arc<OwnedFd>,
}

impl PassthroughFiles {
    /// Without `kernel` there is no passthrough.
    pub(crate) fn start(kernel: Option<BackingFiles>, notifier: Notifier) -> Result<PassthroughFiles> {
        let shared = Arc::new(Shared {
            notifier,
            table: Mutex::default(),
            came: Condvar::new(),
            ended: AtomicBool::new(false),
        });
        if kernel.is_some() {
            let shared = Arc::downgrade(&shared);
            std::thread::Builder::new()
                .name("passthrough".into())
                .spawn(move || keep(&shared))
                .map_err(|error| Error::from_io(&error, "starting a thread for mapped files"))?;
        }
        Ok(PassthroughFiles { kernel, shared })
    }

    /// A program opens a file of this size: returns the kernel's number of the backing file. `None`: it is
    /// accessed through the kernel's pages, as on any mount.
    ///
    /// Errors: those of a server that does not answer, for a file that the kernel may have mapped and no
    /// program has open; `Lost` where programs have open what was lost with its server.
    pub(crate) fn open(&self, file: &Arc<File>, bytes: u64) -> Result<Option<u32>> {
        let Some(kernel) = self.kernel.as_ref().filter(|_| file.layout().width == 1) else { return Ok(None) };
        let inode = file.inode();
        loop {
            let Some(entry) = self.shared.table.lock().access_of(inode, bytes) else { return Ok(None) };
            // Asked before anything is locked: its server may not answer, and then each open waits only for
            // itself.
            let lane = file.lane_here();
            let state = entry.await_turn();
            if state.gone {
                continue;
            }
            let known = state.kernel.as_ref().map(|known| known.backing.id());
            let asks = lane.and_then(|lane| state.asks(file, &lane, bytes));
            let (mut state, backing) = match (asks, known) {
                (Ok(asks), _) => entry.ask(state, || asks.of(kernel, file)),
                // What was opened only for writing cannot be mapped; its writes go by requests, beside
                // others' mappings.
                (Err(error), Some(known)) if error.kind() == ErrorKind::Denied => (state, Ok(known)),
                (Err(error), _) => (state, Err(error)),
            };
            let error = match backing {
                Ok(backing) => {
                    state.opens += 1;
                    state.forgotten = false;
                    self.shared.came.notify_all();
                    return Ok(Some(backing));
                }
                Err(error) => error,
            };
            if state.kernel.is_some() && error.kind() != ErrorKind::Lost {
                return Err(error);
            }
            // Lost: programs that have it open keep it, and a kernel goes one way only with a file.
            if state.opens > 0 {
                return Err(error);
            }
            // Sparse, or elsewhere, or nobody has it open: access through pages always works.
            state.gone = true;
            let mut table = self.shared.table.lock();
            table.passthrough.remove(&inode);
            *table.plain.entry(inode).or_default() += 1;
            return Ok(None);
        }
    }

    /// A descriptor is closed; `passthrough` is what its open has returned.
    pub(crate) fn close(&self, file: &File, passthrough: bool) {
        if self.kernel.is_none() || file.layout().width != 1 {
            return;
        }
        let inode = file.inode();
        if !passthrough {
            self.shared.table.lock().close_plain(inode);
        } else if let Some(entry) = self.find(inode) {
            let mut state = entry.state.lock();
            state.opens = state.opens.saturating_sub(1);
            self.shared.end_if_over(inode, state);
        }
    }

    /// Costs nothing on a mount without passthrough.
    fn find(&self, inode: InodeId) -> Option<Arc<PassthroughFile>> {
        self.kernel.as_ref()?;
        self.shared.table.lock().passthrough.get(&inode).cloned()
    }

    /// Reports stores to the home that it does not know of.
    pub(crate) fn publish(&self, inode: InodeId) -> Result<()> {
        self.writer_of(inode).map_or(Ok(()), |kept| kept.publish())
    }

    /// What was stored so far is seen everywhere from now on, also what left no trace in the time of the lane's file.
    pub(crate) fn publish_all(&self, inode: InodeId) -> Result<()> {
        self.writer_of(inode).map_or(Ok(()), |kept| kept.publish_all())
    }

    fn writer_of(&self, inode: InodeId) -> Option<Kept> {
        self.find(inode)?.state.lock().writer()
    }

    /// Whether there is passthrough at all: then stores of the kernel may be reported after the last request.
    pub(crate) fn is_enabled(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether programs may store into mappings of it, and so change its times without asking.
    pub(crate) fn may_be_stored_into(&self, inode: InodeId) -> bool {
        self.find(inode).is_some_and(|entry| entry.state.lock().writer().is_some())
    }

    /// The kernel has forgotten a node, so it is not mapped by any program; unless it was notified of it again meanwhile, as
    /// `known` says.
    pub(crate) fn forgotten(&self, inode: InodeId, known: impl FnOnce() -> bool) {
        let Some(entry) = self.find(inode) else { return };
        let mut state = entry.state.lock();
        // Under the lock: an open that comes later says that it is known.
        state.forget(known());
        self.shared.end_if_over(inode, state);
    }

    /// A file that was opened by its creation, or would have been, counts as known from here on. That the kernel has forgotten
    /// what it knew of it before may have come in between.
    pub(crate) fn known(&self, inode: InodeId) {
        if let Some(entry) = self.find(inode) {
            entry.state.lock().forgotten = false;
        }
    }

    /// The kernel has let go of the whole mount: nothing is mapped any more. A file that is not closed in
    /// this way stays noted at its home as one that a kernel may still write.
    pub(crate) fn close_all(&self) {
        let files = std::mem::take(&mut self.shared.table.lock().passthrough);
        for entry in files.values() {
            if let Some(kept) = entry.state.lock().writer().filter(|kept| kept.file.home_answers()) {
                let _ = kept.publish();
            }
        }
    }
}

impl Drop for PassthroughFiles {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.came.notify_all();
        // Mappings may outlive this process: their files must not be closed at their homes as if they had
        // ended.
        std::mem::forget(std::mem::take(&mut self.shared.table.lock().passthrough));
    }
}

/// What an open has to ask servers for before the kernel has the file for it as well.
enum Asks {
    Nothing,
    /// The kernel has none of it yet.
    Begin,
    /// What it has was given to another session: this machine was suspended for longer than that one has lived. The memory is
    /// the same; otherwise the kernel refuses.
    Anew,
    /// So far it was only read.
    Writing,
}

/// What has come of it.
enum Given {
    Nothing,
    Begun(Known),
    Kept(Kept),
    Writing(Arc<File>),
}

impl Asks {
    fn of(self, kernel: &BackingFiles, file: &Arc<File>) -> Result<Given> {
        let write = file.rights().write;
        let kept = |lane| Kept { file: file.clone(), lane: Arc::new(lane) };
        Ok(match self {
            Asks::Nothing => Given::Nothing,
            Asks::Begin => {
                let begun = file.begin_passthrough(write)?;
                let backing = kernel.register(&begun.file).inspect_err(|_| file.take_back())?;
                Given::Begun(Known { backing, server: begun.server, kept: kept(begun.file) })
            }
            Asks::Anew => Given::Kept(kept(file.begin_passthrough(write)?.file)),
            Asks::Writing => {
                file.pass_through_for_writing()?;
                Given::Writing(file.clone())
            }
        })
    }
}

impl PassthroughFile {
    /// The state, when no open asks.
    fn await_turn(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.asking {
            state = self.asked.wait(state);
        }
        state
    }

    /// Asks without the lock, for servers may wait for other kernels: whoever closes the file or looks at it goes on.
    /// Returns the kernel's number of the file.
    fn ask<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        asks: impl FnOnce() -> Result<Given>,
    ) -> (MutexGuard<'a, State>, Result<u32>) {
        state.asking = true;
        drop(state);
        let on_panic = Turn(self);
        let given = asks();
        let mut state = self.state.lock();
        std::mem::forget(on_panic);
        state.asking = false;
        self.asked.notify_all();
        let number = given.and_then(|given| state.take(given));
        (state, number)
    }
}

/// Ends the turn of an open whose thread panics.
struct Turn<'a>(&'a PassthroughFile);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().asking = false;
        self.0.asked.notify_all();
    }
}

impl State {
    /// What to ask for one more open.
    fn asks(&self, file: &File, lane: &LaneHere, bytes: u64) -> Result<Asks> {
        let Some(known) = &self.kernel else {
            check_is_whole(&lane.file, bytes)?;
            return Ok(Asks::Begin);
        };
        if lane.server != known.server {
            return Err(Error::new(ErrorKind::Lost, "what the kernel has was lost with its server"));
        }
        let of_this_session = file.is_of_session_of(&known.kept.file);
        Ok(match of_this_session {
            false => Asks::Anew,
            true if file.rights().write && !known.kept.file.rights().write => Asks::Writing,
            true => Asks::Nothing,
        })
    }

    /// Notes what was given; returns the kernel's number of the file.
    fn take(&mut self, given: Given) -> Result<u32> {
        match (given, &mut self.kernel) {
            (Given::Begun(known), kernel) => *kernel = Some(known),
            (Given::Kept(kept), Some(known)) => known.kept = kept,
            (Given::Writing(file), Some(known)) => known.kept.file = file,
            (Given::Nothing, _) | (_, None) => {}
        }
        let gone = || Error::new(ErrorKind::Stale, "the kernel has let go of the file meanwhile");
        self.kernel.as_ref().map(|known| known.backing.id()).ok_or_else(gone)
    }

    /// The kernel has forgotten the node; not if it is known again.
    fn forget(&mut self, is_known: bool) {
        self.forgotten |= !is_known;
    }

    /// Whether no program has the file open or mapped, and nobody is about to.
    fn is_over(&self) -> bool {
        self.opens == 0 && !self.asking && self.forgotten && !self.gone
    }

    /// The handle that reports stores to the home, if there may be any.
    fn writer(&self) -> Option<Kept> {
        let kept = &self.kernel.as_ref()?.kept;
        kept.file.rights().write.then(|| kept.clone())
    }
}

impl Kept {
    /// Reports stores to the home that were made since the lane's file had no modification time, which is how
    /// its server leaves it.
    fn publish(&self) -> Result<()> {
        match time_of_stores(&self.lane)? {
            None => Ok(()),
            at => self.report(at),
        }
    }

    fn publish_all(&self) -> Result<()> {
        self.report(time_of_stores(&self.lane)?)
    }

    fn report(&self, at: Option<Timestamp>) -> Result<()> {
        match self.file.publish_stores(at) {
            // The file was removed: there is no time to report any more.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

impl Shared {
    /// Closes a file that no program has open or mapped.
    fn end_if_over(&self, inode: InodeId, mut state: MutexGuard<'_, State>) {
        if !state.is_over() {
            return;
        }
        state.gone = true;
        let known = state.kernel.take();
        self.table.lock().passthrough.remove(&inode);
        drop(state);
        // If the home does not answer, it is notified later of the close, and that a kernel had the file.
        if let Some(Known { kept, .. }) = known
            && kept.file.rights().write
            && kept.file.home_answers()
        {
            let _ = kept.publish();
        }
    }
}

impl Table {
    /// Chooses the kind of access for one more open, and notes it if it is not passthrough.
    fn access_of(&mut self, inode: InodeId, bytes: u64) -> Option<Arc<PassthroughFile>> {
        let room = self.passthrough.len() < limits::PASSTHROUGH_FILES_PER_MOUNT_MAX;
        if !self.plain.contains_key(&inode) {
            if let Some(entry) = self.passthrough.get(&inode) {
                return Some(entry.clone());
            }
            if room && bytes >= limits::PASSTHROUGH_BYTES_MIN {
                return Some(self.passthrough.entry(inode).or_default().clone());
            }
        }
        *self.plain.entry(inode).or_default() += 1;
        None
    }

    fn close_plain(&mut self, inode: InodeId) {
        if let Some(opens) = self.plain.get_mut(&inode) {
            *opens -= 1;
            if *opens == 0 {
                self.plain.remove(&inode);
            }
        }
    }
}

/// Asks the kernel to forget files that no program has open, and checks the times of the others.
fn keep(shared: &Weak<Shared>) {
    let mut poll = MtimePoll::default();
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let mut table = shared.table.lock();
        while table.passthrough.is_empty() && !shared.ended.load(Ordering::Acquire) {
            table = shared.came.wait(table);
        }
        let all: Vec<(InodeId, Arc<PassthroughFile>)> =
            table.passthrough.iter().map(|(inode, entry)| (*inode, entry.clone())).collect();
        drop(table);
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        for (inode, entry) in &all {
            let idle = {
                let state = entry.state.lock();
                state.opens == 0 && state.kernel.is_some()
            };
            // A kernel that cannot be asked (before Linux 6.18) forgets when it needs memory, or with the
            // file's last name.
            if idle {
                let _ = shared.notifier.prune(inode.0);
            }
        }
        if poll.is_due(Instant::now()) {
            let writers = all.iter().filter_map(|(_, entry)| entry.state.lock().writer());
            for kept in writers.filter(|kept| kept.file.home_answers()) {
                let _ = kept.publish();
            }
        }
        // What is still referenced is not closed.
        drop(all);
        drop(shared);
        std::thread::sleep(PAUSE);
    }
}

/// Checks that a lane is as long as its file and has its memory, as far as this can be seen from here: a
/// request for another would be useless.
fn check_is_whole(lane: &OwnedFd, bytes: u64) -> Result<()> {
    let stat = stat(lane)?;
    if stat.st_size.cast_unsigned() == bytes && stat.st_blocks.cast_unsigned() * 512 >= bytes {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, "it has holes, or room behind its end"))
}

/// When programs last stored into mappings of the lane, in pages that they had not loaded before.
fn time_of_stores(lane: &OwnedFd) -> Result<Option<Timestamp>> {
    let stat = stat(lane)?;
    let nanos = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    Ok((nanos != 0).then(|| Timestamp { nanos: nanos.clamp(0, i64::MAX.into()) as i64 }))
}

fn stat(lane: &OwnedFd) -> Result<rustix::fs::Stat> {
    rustix::fs::fstat(lane)
        .map_err(|errno| Error::from_io(&errno.into(), "looking at the memory of a mapped file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 92.1
    #[test]
    fn a_file_that_is_known_again_stays_the_kernels_though_a_late_message_says_that_it_was_forgotten() {
        let mut state = State { opens: 1, ..State::default() };
        state.forget(true);
        state.opens = 0;
        assert!(!state.is_over(), "a program may have it mapped");
        state.forget(false);
        assert!(state.is_over());
        state.forget(true);
        assert!(state.is_over(), "nothing makes it known but an open");
    }
}
