//! Refreshing a file: the kernel drops its pages, and the next load brings what others have published.
//!
//! The kernel waits for locked pages, and the daemon must go on answering for those meanwhile. So
//! invalidations have threads of their own, which answer the request that asked when they are done.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use ramlace_base::{Error, ErrorKind, InodeId, Result};
use ramlace_fuse::{Notifier, Reply};

use crate::pages::Pages;
use crate::versions::{Version, Versions};
use crate::write_errors::WriteErrors;

/// Setting this attribute of a file, to whatever value, refreshes it; so does reading it, which readers may.
pub const REFRESH_ATTRIBUTE: &str = "user.ramlace.refresh";

/// Refreshes at once: one that waits for a silent server, to write pages back, must not hold up all others.
const REFRESH_THREADS: usize = 4;
/// Refreshes that may wait for their turn.
const REFRESHES_WAITING_MAX: usize = 1024;

/// What whoever asked for a refresh wants to hear.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// That it is done: the attribute was set.
    Ok,
    /// The attribute's value, or its size when this is 0.
    Value { size: u32 },
}

/// The attribute's value, which means nothing.
const VALUE: &[u8] = b"1";

/// What follows when the pages are gone, or could not be dropped.
type Then = Box<dyn FnOnce(Result<()>) + Send>;

struct Wanted {
    inode: InodeId,
    then: Option<Then>,
    /// What the file was when the refresh was asked for, where that is known.
    version: Option<Version>,
    /// Whoever asks hears of pages that could not be written back before.
    tells_errors: bool,
}

/// Where refreshes are asked for.
pub(crate) struct Refresher {
    wanted: SyncSender<Wanted>,
}

impl Refresher {
    /// Starts the threads that do the work, until the refresher is dropped.
    pub(crate) fn start(
        notifier: &Notifier,
        versions: &Arc<Versions>,
        errors: &Arc<WriteErrors>,
        pages: &Arc<Pages>,
    ) -> Result<Refresher> {
        let (wanted, work) = sync_channel(REFRESHES_WAITING_MAX);
        let work = Arc::new(Mutex::new(work));
        for _ in 0..REFRESH_THREADS {
            let (work, notifier) = (work.clone(), notifier.clone());
            let (versions, errors, pages) = (versions.clone(), errors.clone(), pages.clone());
            std::thread::Builder::new()
                .name("refresh".into())
                .spawn(move || run(&work, &notifier, &versions, &errors, &pages))
                .map_err(|error| Error::from_io(&error, "starting a thread that refreshes files"))?;
        }
        Ok(Refresher { wanted })
    }

    /// Refreshes a file and answers when its pages are gone.
    pub(crate) fn refresh(&self, inode: InodeId, reply: Reply, answer: Answer) {
        self.want(Wanted { inode, then: Some(answering(reply, answer)), version: None, tells_errors: true });
    }

    /// Answers when no pages are left from before this version.
    pub(crate) fn bring_to(&self, inode: InodeId, version: Version, reply: Reply) {
        let then = Some(answering(reply, Answer::Ok));
        self.want(Wanted { inode, then, version: Some(version), tells_errors: true });
    }

    /// Does something when the kernel has written back what programs stored into the file's pages.
    pub(crate) fn after_writing_back(&self, inode: InodeId, then: Then) {
        self.want(Wanted { inode, then: Some(then), version: None, tells_errors: false });
    }

    fn want(&self, wanted: Wanted) {
        if let Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) =
            self.wanted.try_send(wanted)
            && let Some(then) = refused.then
        {
            then(Err(Error::new(ErrorKind::Busy, "too many refreshes wait for their turn")));
        }
    }

    /// Drops a file's pages soon, and tells nobody. Too many at once: the next refresh or open does it.
    pub(crate) fn drop_pages(&self, inode: InodeId) {
        let _ = self.wanted.try_send(Wanted { inode, then: None, version: None, tells_errors: false });
    }
}

fn run(
    work: &Mutex<Receiver<Wanted>>,
    notifier: &Notifier,
    versions: &Versions,
    errors: &WriteErrors,
    pages: &Pages,
) {
    // One of the threads waits for work, and the others for their turn to do so.
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok(Wanted { inode, then, version, tells_errors }) = next() {
        // Pages that come from now on may be older than the version at the last open.
        versions.forget(inode);
        // A kernel that does not know the file has no pages of it. What it could not write back it drops with the others,
        // and says nothing.
        pages.drop_begins(inode);
        let dropped = notifier.invalidate_inode(inode.0, 0, 0);
        pages.drop_is_over(inode);
        let dropped = dropped.and_then(|_| if tells_errors { errors.tell_refresh(inode) } else { Ok(()) });
        if let (Some(version), Ok(())) = (version, &dropped) {
            versions.learn(inode, version);
        }
        if let Some(then) = then {
            then(dropped);
        }
    }
}

fn answering(reply: Reply, answer: Answer) -> Then {
    Box::new(move |dropped| tell(reply, answer, dropped))
}

fn tell(reply: Reply, answer: Answer, dropped: Result<()>) {
    match (dropped, answer) {
        (Err(error), _) => reply.error(error.errno()),
        (Ok(()), Answer::Ok) => reply.ok(),
        (Ok(()), Answer::Value { size: 0 }) => reply.xattr_size(VALUE.len() as u32),
        (Ok(()), Answer::Value { .. }) => reply.data(VALUE),
    };
}
