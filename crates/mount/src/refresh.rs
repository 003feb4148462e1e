//! Refreshing a file: the kernel drops its pages, and the next load reads what others have published.
//!
//! The kernel waits for locked pages, and the daemon must go on answering requests for those meanwhile. So
//! invalidations have threads of their own, which answer the request for the refresh when they are done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result};
use ramlace_fuse::{Notifier, Reply};
use ramlace_sync::Mutex;

use crate::handles::OpenFile;
use crate::pages::{Pages, WHOLE};
use crate::versions::{Version, Versions};
use crate::write_errors::WriteErrors;

/// Setting this attribute of a file, to any value, refreshes it; so does reading it, which readers may do.
/// With a suffix `.START.LENGTH`, in bytes, it refreshes these bytes.
pub const REFRESH_ATTRIBUTE: &str = "user.ramlace.refresh";

/// Refreshes at the same time: one that waits for an unresponsive server to write pages back must not delay
/// all others.
const REFRESH_THREADS: usize = 4;
/// The limit of refreshes that wait for their turn.
const REFRESHES_WAITING_MAX: usize = 1024;

/// The form of the answer to a refresh.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// Success: the attribute was set.
    Ok,
    /// The attribute's value, or its size when this is 0.
    Value { size: u32 },
    /// The return of a call by a descriptor.
    Returned,
}

/// An offset with which the kernel drops no page.
const ATTRIBUTES_ONLY: i64 = -1;

/// The attribute's value, which has no meaning.
const VALUE: &[u8] = b"1";

/// Called when the pages are gone, or could not be dropped.
type Then = Box<dyn FnOnce(Result<()>) + Send>;

struct Wanted {
    inode: InodeId,
    part: ByteRange,
    /// A descriptor of a file into which no program here stores: by it the servers can be asked whether its
    /// pages have to be dropped.
    reader: Option<Arc<OpenFile>>,
    then: Option<Then>,
    /// The file's version when the refresh was requested, if known.
    version: Option<Version>,
    /// The answer reports pages that could not be written back before.
    tells_errors: bool,
}

/// The interface for requesting refreshes.
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

    /// Refreshes a part of a file and answers when its pages are gone, or are known to be up to date.
    pub(crate) fn refresh(
        &self,
        (inode, part): (InodeId, ByteRange),
        reader: Option<Arc<OpenFile>>,
        reply: Reply,
        answer: Answer,
    ) {
        let then = Some(answering(reply, answer));
        self.want(Wanted { part, reader, tells_errors: true, ..Wanted::all(inode, then) });
    }

    /// Answers a lock when there are no pages from before this version. What could not be written back is no matter of the
    /// program that locks: an error would say that it has no lock, and its home has given it. `fsync` and `close` report that
    /// to those who stored.
    pub(crate) fn bring_to(&self, inode: InodeId, version: Version, reply: Reply) {
        let then = Some(answering(reply, Answer::Ok));
        self.want(Wanted { version: Some(version), ..Wanted::all(inode, then) });
    }

    /// The same for a part of the file.
    pub(crate) fn after_writing_back_part(&self, inode: InodeId, part: ByteRange, then: Then) {
        self.want(Wanted { part, ..Wanted::all(inode, Some(then)) });
    }

    /// Calls `then` when the kernel has written back what programs stored into the file's pages.
    pub(crate) fn after_writing_back(&self, inode: InodeId, then: Then) {
        self.want(Wanted::all(inode, Some(then)));
    }

    fn want(&self, wanted: Wanted) {
        if let Err(TrySendError::Full(refused) | TrySendError::Disconnected(refused)) =
            self.wanted.try_send(wanted)
            && let Some(then) = refused.then
        {
            then(Err(Error::new(ErrorKind::Busy, "too many refreshes wait for their turn")));
        }
    }

    /// Drops a file's pages soon, without a report. If there are too many refreshes, the next refresh or open
    /// does it.
    pub(crate) fn drop_pages(&self, inode: InodeId) {
        let _ = self.wanted.try_send(Wanted::all(inode, None));
    }
}

impl Wanted {
    /// A refresh of all pages of a file.
    fn all(inode: InodeId, then: Option<Then>) -> Wanted {
        Wanted { inode, part: WHOLE, reader: None, then, version: None, tells_errors: false }
    }
}

/// The bytes that an attribute of this name refreshes; `None`: it is another attribute.
pub(crate) fn refreshed_by(name: &[u8]) -> Option<Result<ByteRange>> {
    let rest = name.strip_prefix(REFRESH_ATTRIBUTE.as_bytes())?;
    if rest.is_empty() {
        return Some(Ok(WHOLE));
    }
    let numbers = std::str::from_utf8(rest.strip_prefix(b".")?).ok().and_then(|text| text.split_once('.'));
    let range = numbers.and_then(|(start, length)| ByteRange::at(start.parse().ok()?, length.parse().ok()?));
    Some(range.filter(|range| range.end <= i64::MAX as u64).ok_or_else(|| {
        let text = format!("the bytes to refresh are {REFRESH_ATTRIBUTE}.START.LENGTH, two numbers");
        Error::new(ErrorKind::Invalid, text)
    }))
}

fn run(
    work: &Mutex<Receiver<Wanted>>,
    notifier: &Notifier,
    versions: &Versions,
    errors: &WriteErrors,
    pages: &Pages,
) {
    // One of the threads waits for work, and the others wait for the lock.
    let next = || work.lock().recv();
    while let Ok(Wanted { inode, part, reader, then, version, tells_errors }) = next() {
        // If a server does not answer, or has no lease, all pages are dropped.
        let is_current = reader.is_some_and(|reader| reader.file.pages_are_current().unwrap_or(false));
        let dropped = if is_current {
            notifier.invalidate_inode(inode.0, ATTRIBUTES_ONLY, 0)
        } else {
            // Pages that are read from now on may be older than the version at the last open.
            versions.forget(inode);
            // A kernel that does not know the file has no pages of it. Pages that it could not write back it
            // drops with the others, without a report.
            pages.drop_begins(inode);
            // 0 means to the end.
            let length = if part.end >= i64::MAX as u64 { 0 } else { part.length() as i64 };
            let dropped = notifier.invalidate_inode(inode.0, part.start as i64, length);
            pages.drop_is_over(inode);
            dropped
        };
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

pub(crate) fn tell(reply: Reply, answer: Answer, dropped: Result<()>) {
    match (dropped, answer) {
        (Err(error), _) => reply.error(error.errno()),
        (Ok(()), Answer::Ok) => reply.ok(),
        (Ok(()), Answer::Returned) => reply.ioctl(0, &[]),
        (Ok(()), Answer::Value { size: 0 }) => reply.xattr_size(VALUE.len() as u32),
        (Ok(()), Answer::Value { .. }) => reply.data(VALUE),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 43.4
    #[test]
    fn an_attribute_names_the_bytes_to_refresh() {
        let part = |name: &str| refreshed_by(name.as_bytes());
        assert_eq!(part("user.ramlace.refresh").unwrap().unwrap(), WHOLE);
        let some = ByteRange { start: 4096, end: 4196 };
        assert_eq!(part("user.ramlace.refresh.4096.100").unwrap().unwrap(), some);
        assert!(part("user.ramlace.refresh.1.0").unwrap().unwrap().is_empty());
        for wrong in [".", ".1", ".1.", ".-1.5", ".1.9223372036854775807", ".1.2.3", ".a.b"] {
            assert!(part(&format!("user.ramlace.refresh{wrong}")).unwrap().is_err(), "{wrong}");
        }
        for other in ["user.ramlace.refreshed", "user.ramlace", "user.other"] {
            assert!(part(other).is_none());
        }
    }
}
