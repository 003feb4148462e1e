//! Refreshing a file: the kernel drops its pages, and the next load reads what others have published.
//!
//! The kernel waits for locked pages, and the daemon must go on answering requests for those meanwhile. So
//! invalidations have threads of their own, which answer the request for the refresh when they are done.

use std::sync::Arc;

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result};
use ramlace_fuse::{Notifier, Reply};
use ramlace_sync::{Condvar, Mutex, MutexGuard};

use crate::handles::OpenFile;
use crate::pages::{Pages, WHOLE};
use crate::versions::{Version, Versions};
use crate::write_errors::WriteErrors;

use self::queue::Queue;

mod queue;

/// Setting this attribute of a file, to any value, refreshes it; so does reading it, which readers may do.
/// With a suffix `.START.LENGTH`, in bytes, it refreshes these bytes.
pub const REFRESH_ATTRIBUTE: &str = "user.ramlace.refresh";

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

/// The interface for requesting refreshes. Its threads end with it, when they have done what waits.
pub(crate) struct Refresher {
    shared: Arc<Shared>,
}

/// Lock order: `state` is taken alone.
struct Shared {
    notifier: Notifier,
    versions: Arc<Versions>,
    errors: Arc<WriteErrors>,
    pages: Arc<Pages>,
    state: Mutex<State>,
    /// There is something to do, or nothing ever will be.
    work: Condvar,
}

struct State {
    queue: Queue<Wanted>,
    /// Nothing more is requested.
    over: bool,
}

impl Refresher {
    /// Starts the first of the threads that do the work.
    pub(crate) fn start(
        notifier: &Notifier,
        versions: &Arc<Versions>,
        errors: &Arc<WriteErrors>,
        pages: &Arc<Pages>,
    ) -> Result<Refresher> {
        let mut queue = Queue::new();
        queue.begin_first_thread();
        let shared = Arc::new(Shared {
            notifier: notifier.clone(),
            versions: versions.clone(),
            errors: errors.clone(),
            pages: pages.clone(),
            state: Mutex::new(State { queue, over: false }),
            work: Condvar::new(),
        });
        shared.spawn().map_err(|error| Error::from_io(&error, "starting a thread that refreshes files"))?;
        Ok(Refresher { shared })
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
        self.want(inode, Wanted { part, reader, tells_errors: true, ..Wanted::all(then) });
    }

    /// Calls `then` when there are no pages from before this version: a lock was granted. What could not be written back is no
    /// matter of the program that locks: an error would say that it has no lock, and its home has given it. `fsync` and `close`
    /// report that to those who stored. However many refreshes wait, this one is done.
    pub(crate) fn bring_to(&self, inode: InodeId, version: Version, then: Then) {
        self.must(inode, Wanted { version: Some(version), ..Wanted::all(Some(then)) });
    }

    /// Calls `then` when the kernel has written back what programs stored into these bytes, which are about to be unlocked.
    /// However many refreshes wait, this one is done.
    pub(crate) fn before_giving_away(&self, inode: InodeId, part: ByteRange, then: Then) {
        self.must(inode, Wanted { part, ..Wanted::all(Some(then)) });
    }

    /// Calls `then` when the kernel has written back what programs stored into these bytes.
    pub(crate) fn after_writing_back_part(&self, inode: InodeId, part: ByteRange, then: Then) {
        self.want(inode, Wanted { part, ..Wanted::all(Some(then)) });
    }

    /// The same for all pages of the file.
    pub(crate) fn after_writing_back(&self, inode: InodeId, then: Then) {
        self.want(inode, Wanted::all(Some(then)));
    }

    fn must(&self, inode: InodeId, wanted: Wanted) {
        let mut state = self.shared.lock();
        // None is refused that must be done.
        let _ = state.queue.add(inode, wanted, true);
        self.shared.see_to(&mut state);
    }

    fn want(&self, inode: InodeId, wanted: Wanted) {
        let mut state = self.shared.lock();
        let added = state.queue.add(inode, wanted, false);
        self.shared.see_to(&mut state);
        drop(state);
        if let Err(Wanted { then: Some(then), .. }) = added {
            then(Err(Error::new(ErrorKind::Busy, "too many refreshes wait for their turn")));
        }
    }

    /// Drops a file's pages soon, without a report. If there are too many refreshes, the next refresh or open
    /// does it.
    pub(crate) fn drop_pages(&self, inode: InodeId) {
        let drops_all = |wanted: &Wanted| wanted.part == WHOLE && wanted.reader.is_none();
        let mut state = self.shared.lock();
        if !state.queue.any_waits(inode, drops_all) {
            let _ = state.queue.add(inode, Wanted::all(None), false);
            self.shared.see_to(&mut state);
        }
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Something was added: wakes a thread for it, or starts one.
    fn see_to(self: &Arc<Shared>, state: &mut State) {
        if state.queue.begin_thread()
            && let Err(error) = self.spawn()
        {
            // Others do it, later.
            state.queue.end_thread();
            eprintln!("ramlace: a thread that refreshes files could not be started: {error}");
        }
        self.work.notify_one();
    }

    fn spawn(self: &Arc<Shared>) -> std::io::Result<()> {
        let shared = self.clone();
        std::thread::Builder::new().name("refresh".into()).spawn(move || shared.run()).map(drop)
    }

    fn run(&self) {
        while let Some((inode, wanted)) = self.next() {
            // A thread fewer would be missed for ever.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.refresh(inode, wanted)));
            self.lock().queue.over(inode);
        }
    }

    /// Waits for something to do; `None` when there will be nothing more, or when enough other threads wait.
    fn next(&self) -> Option<(InodeId, Wanted)> {
        let mut state = self.lock();
        loop {
            if let Some(next) = state.queue.next() {
                return Some(next);
            }
            if state.over || !state.queue.begin_idling() {
                state.queue.end_thread();
                return None;
            }
            state = self.work.wait(state);
            state.queue.end_idling();
        }
    }

    fn refresh(&self, inode: InodeId, wanted: Wanted) {
        let Wanted { part, reader, then, version, tells_errors } = wanted;
        // If a server does not answer, or has no lease, all pages are dropped.
        let is_current = reader.is_some_and(|reader| reader.file.pages_are_current().unwrap_or(false));
        let dropped = match is_current {
            true => self.notifier.invalidate_inode(inode.0, ATTRIBUTES_ONLY, 0).map(drop),
            false => self.drop_part(inode, part),
        };
        let dropped =
            dropped.and_then(|()| if tells_errors { self.errors.tell_refresh(inode) } else { Ok(()) });
        if let (Some(version), Ok(())) = (version, &dropped) {
            self.versions.learn(inode, version);
        }
        if let Some(then) = then {
            then(dropped);
        }
    }

    fn drop_part(&self, inode: InodeId, part: ByteRange) -> Result<()> {
        // Pages that are read from now on may be older than the version at the last open.
        self.versions.forget(inode);
        // A kernel that does not know the file has no pages of it. Pages that it could not write back it
        // drops with the others, without a report.
        self.pages.drop_begins(inode);
        // 0 means to the end.
        let length = if part.end >= i64::MAX as u64 { 0 } else { part.length() as i64 };
        let dropped = self.notifier.invalidate_inode(inode.0, part.start as i64, length);
        self.pages.drop_is_over(inode);
        dropped.map(drop)
    }
}

impl Wanted {
    /// A refresh of all pages of a file.
    fn all(then: Option<Then>) -> Wanted {
        Wanted { part: WHOLE, reader: None, then, version: None, tells_errors: false }
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
