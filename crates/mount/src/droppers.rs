//! The threads that make the kernel drop pages: those that servers recall, and those that may be older than
//! they seem.
//!
//! [`crate::recalls`] decides which pages are dropped, when, and what is reported. A dropper is never one of
//! the threads that answer the kernel.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, InodeId, Result, ServerId};
use ramlace_client::{DataLeases, DataRecall, Pool};
use ramlace_fuse::Notifier;
use ramlace_sync::{Condvar, Mutex, MutexGuard};
use ramlace_wire::Mode;
use ramlace_wire::leases::EndRecalls;
use rustix::process::Pid;

use crate::handles::Handles;
use crate::modes::Modes;
use crate::pages::{Pages, Suspect, WHOLE};
use crate::reads::Held;
use crate::recalls::{
    Drops, Effect, For, HOLDER_WAITS_MILLIS_MAX, UNLIKELY_HOLDER_WAITS_MILLIS_MAX, WAITING_MILLIS_MAX, Wanted,
};
use crate::strict::StrictReads;
use crate::versions::Versions;

/// Threads that are started at once when all files are dropped.
const THREADS_FOR_ALL: usize = 16;
/// So long a program may take, on a busy machine, to take in the answer to its read. A lease holds the pages until then.
const TAKEN_IN_MILLIS: u64 = 100;
/// Drops that are to begin later; with more of them they begin at once.
const LATER_MAX: usize = 1_024;

/// Called when pages are gone. It must not wait.
type Then = Box<dyn FnOnce() + Send>;

/// The interface to the dropping threads, which end with it.
pub(crate) struct Droppers {
    shared: Arc<Shared>,
}

/// Lock order: `state`, then those of [`crate::nodes`] (by `pages` and `modes`). Drops themselves, and what
/// follows from them, are done without it.
struct Shared {
    notifier: Notifier,
    pages: Arc<Pages>,
    versions: Arc<Versions>,
    strict: Arc<StrictReads>,
    modes: Arc<Modes>,
    handles: Arc<Handles>,
    began: Instant,
    state: Mutex<State>,
    /// There is something to drop, or nothing ever will be.
    work: Condvar,
    /// There is something to check.
    time: Condvar,
}

struct State {
    drops: Drops<Then>,
    /// What is to be dropped later, and when, in this order.
    later: VecDeque<(u64, Wanted)>,
    /// The threads of the drops that are under way, by the drop.
    threads: HashMap<u64, Pid>,
    /// The connection to the servers; `None`: the mount has ended.
    pool: Option<Pool>,
    /// The time for which the watching thread sleeps; it then checks what is late.
    watched_until: Option<u64>,
}

/// Knows which files the kernel still has to drop pages of.
#[derive(Clone)]
pub(crate) struct PendingDrops(Weak<Shared>);

impl PendingDrops {
    /// Whether the kernel may have pages of this file although others were notified that nobody waits for them.
    pub(crate) fn has(&self, inode: InodeId) -> bool {
        let is_pending = |shared: Arc<Shared>| {
            shared.modes.of(inode) == Mode::Relaxed && shared.lock().drops.is_pending(inode)
        };
        self.0.upgrade().is_some_and(is_pending)
    }
}

/// Receives servers' recalls.
struct Recalled(Weak<Shared>);

impl Droppers {
    /// Begins to receive servers' recalls.
    pub(crate) fn start(
        pool: &Pool,
        notifier: Notifier,
        (pages, versions): (&Arc<Pages>, &Arc<Versions>),
        strict: &Arc<StrictReads>,
        (modes, handles): (&Arc<Modes>, &Arc<Handles>),
    ) -> Result<Droppers> {
        let (drops, threads) = (Drops::new(), HashMap::new());
        let (later, pool_here) = (VecDeque::new(), Some(pool.clone()));
        let state = State { drops, later, threads, pool: pool_here, watched_until: None };
        let shared = Arc::new(Shared {
            notifier,
            pages: pages.clone(),
            versions: versions.clone(),
            strict: strict.clone(),
            modes: modes.clone(),
            handles: handles.clone(),
            began: Instant::now(),
            state: Mutex::new(state),
            work: Condvar::new(),
            time: Condvar::new(),
        });
        let watcher = shared.clone();
        std::thread::Builder::new()
            .name("late-drops".into())
            .spawn(move || watcher.watch())
            .map_err(|error| Error::from_io(&error, "starting a thread that watches drops of pages"))?;
        pool.on_data_recalls(Arc::new(Recalled(Arc::downgrade(&shared))));
        Ok(Droppers { shared })
    }

    /// A view of what is still to be dropped.
    pub(crate) fn pending(&self) -> PendingDrops {
        PendingDrops(Arc::downgrade(&self.shared))
    }

    /// Drops pages soon.
    pub(crate) fn drop_soon(&self, inode: InodeId, range: ByteRange) {
        self.shared.want([(Wanted { inode, parts: vec![range] }, For::Nobody)]);
    }

    /// Drops pages of which a program is answered that the file ends before them, when it has taken that in: a kernel that
    /// drops something of a file meanwhile keeps to the end that it knew, and reads zeros up to there.
    pub(crate) fn drop_later(&self, inode: InodeId, range: ByteRange) {
        let mut state = self.shared.lock();
        if state.later.len() >= LATER_MAX {
            drop(state);
            return self.drop_soon(inode, range);
        }
        let at = self.shared.now() + TAKEN_IN_MILLIS;
        state.later.push_back((at, Wanted { inode, parts: vec![range] }));
        self.shared.see_to_watch(&state);
    }

    /// Drops the pages of a write, and calls `then` when they are gone; or after a while, if the kernel may
    /// hold one of them until then: the last one.
    pub(crate) fn drop_then(&self, inode: InodeId, Suspect { range, held }: Suspect, then: Then) {
        let drop_of = move |part| Wanted { inode, parts: vec![part] };
        let millis = match held {
            Held::No => return self.shared.want([(drop_of(range), For::Waiting(then, WAITING_MILLIS_MAX))]),
            Held::Hardly => UNLIKELY_HOLDER_WAITS_MILLIS_MAX,
            Held::Perhaps => HOLDER_WAITS_MILLIS_MAX,
        };
        let (before, last) = last_page_of(range);
        if before.is_empty() {
            return self.shared.want([(drop_of(last), For::Waiting(then, millis))]);
        }
        let shared = self.shared.clone();
        let behind: Then = Box::new(move || {
            shared.want([(drop_of(last), For::Waiting(then, millis))]);
        });
        self.shared.want([(drop_of(before), For::Waiting(behind, WAITING_MILLIS_MAX))]);
    }

    /// Drops all pages soon: the session has ended, and its leases with it.
    pub(crate) fn drop_all(&self) {
        self.shared.drop_files(|_| true);
    }
}

impl Drop for Droppers {
    fn drop(&mut self) {
        // Dropping the pool's last clone notifies its servers of the end: that must not happen in one of the
        // threads.
        let pool = self.shared.lock().pool.take();
        self.shared.work.notify_all();
        self.shared.time.notify_all();
        drop(pool);
    }
}

impl DataLeases for Recalled {
    fn recalled(&self, server: ServerId, recalls: &[DataRecall]) {
        let Some(shared) = self.0.upgrade() else { return };
        let drop_of = |recall: &DataRecall| {
            let DataRecall { number, inode, lane, start, end } = *recall;
            let range = ByteRange { start, end };
            if range == WHOLE {
                shared.pages.note_leases_ended(inode);
            }
            let parts = shared.pages.parts(inode, lane, range);
            (Wanted { inode, parts }, For::Server(server, number))
        };
        shared.want(recalls.iter().map(drop_of));
    }

    fn forgotten(&self, server: ServerId, life: u64) {
        if let Some(shared) = self.0.upgrade() {
            shared.drop_for_life(server, life);
        }
    }

    fn unheard(&self, server: ServerId) {
        if let Some(shared) = self.0.upgrade() {
            shared.drop_unheard(server);
        }
    }
}

impl Shared {
    /// A server may not wait for this mount any more: drops the pages of its files. Not of those in which programs here may
    /// have stored, for the server takes nothing back meanwhile; and in relaxed mode a program does not see what others
    /// have changed before it asks.
    fn drop_unheard(self: &Arc<Shared>, server: ServerId) {
        let Some(pool) = self.lock().pool.clone() else { return };
        self.drop_files(|inode| {
            self.modes.of(inode) != Mode::Relaxed
                && !self.handles.is_written_here(inode)
                && pool.may_have_bytes_at(server, inode, self.pages.layout(inode).as_ref())
        });
    }

    /// Drops all pages of these files; until it is over, an open drops them, too.
    fn drop_files(self: &Arc<Shared>, which: impl Fn(InodeId) -> bool) {
        let files: Vec<InodeId> = self.pages.all().into_iter().filter(|inode| which(*inode)).collect();
        let wanted = files.iter().map(|inode| {
            self.pages.note_leases_ended(*inode);
            self.versions.forget(*inode);
            let mut parts = self.pages.unread(*inode);
            if parts != [WHOLE] {
                parts.push(WHOLE);
            }
            Wanted { inode: *inode, parts }
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let mut state = self.lock();
        let count = wanted.len();
        state.drops.add_all(wanted);
        self.begin_to_drop_all(&mut state, count);
    }

    fn begin_to_drop_all(self: &Arc<Shared>, state: &mut State, files: usize) {
        for _ in 0..files.min(THREADS_FOR_ALL) {
            self.begin_threads(state);
        }
        self.see_to_watch(state);
    }

    /// It is not known here which files have bytes of the server: all are dropped.
    fn drop_for_life(self: &Arc<Shared>, server: ServerId, life: u64) {
        let all = self.pages.all();
        all.iter().for_each(|inode| self.pages.note_leases_ended(*inode));
        let mut state = self.lock();
        let effect = state.drops.add_life(server, life, &all);
        self.begin_to_drop_all(&mut state, all.len());
        drop(state);
        self.carry_out(effect);
    }

    fn want(self: &Arc<Shared>, wanted: impl IntoIterator<Item = (Wanted, For<Then>)>) {
        let mut state = self.lock();
        let mut effects = Vec::new();
        for (drop, whom) in wanted {
            let now = self.now();
            effects.extend(match whom {
                For::Server(server, number) if self.modes.of(drop.inode) == Mode::Relaxed => {
                    state.drops.add_relaxed(drop, (server, number), now)
                }
                whom => state.drops.add(drop, whom, now),
            });
            self.begin_threads(&mut state);
        }
        self.see_to_watch(&state);
        drop(state);
        self.carry_out(effects);
    }

    /// Starts the threads that are needed for what may be waiting.
    fn begin_threads(self: &Arc<Shared>, state: &mut State) {
        if state.drops.begin_thread() && !self.begin_thread() {
            state.drops.end_thread();
        }
        self.work.notify_one();
    }

    fn begin_thread(self: &Arc<Shared>) -> bool {
        let shared = self.clone();
        let begun = std::thread::Builder::new().name("dropper".into()).spawn(move || shared.work());
        if let Err(error) = &begun {
            eprintln!("ramlace: a thread that drops pages could not be started: {error}");
        }
        begun.is_ok()
    }

    /// The loop of a dropper.
    fn work(&self) {
        while let Some((id, Wanted { inode, parts })) = self.next() {
            self.pages.drop_begins(inode);
            let dropped = parts.iter().try_for_each(|part| self.drop_part(inode, *part));
            self.pages.drop_is_over(inode);
            if let Err(error) = &dropped {
                eprintln!("ramlace: inode {inode}: {error}");
            }
            let effect = {
                let mut state = self.lock();
                state.threads.remove(&id);
                let effect = state.drops.over(id, dropped.is_ok(), self.now());
                // Another drop of the same file may have waited for this one.
                self.work.notify_one();
                self.see_to_watch(&state);
                effect
            };
            self.carry_out(effect);
        }
    }

    fn drop_part(&self, inode: InodeId, part: ByteRange) -> Result<()> {
        // Only for single pages it is insisted that they be dropped. A large part of a file that is being
        // read is never idle, and the kernel itself waits for locked pages.
        if part.length() <= rustix::param::page_size() as u64 {
            self.strict.await_turn(inode, part);
        }
        // 0 means to the end.
        let length = if part.end > i64::MAX as u64 { 0 } else { part.length() as i64 };
        // A kernel that does not know the file has no pages of it.
        self.notifier.invalidate_inode(inode.0, part.start as i64, length).map(drop)
    }

    /// Waits for something to drop; `None` when the mount has ended, or when enough other threads wait.
    fn next(&self) -> Option<(u64, Wanted)> {
        let mut state = self.lock();
        loop {
            if state.pool.is_none() {
                state.drops.end_thread();
                return None;
            }
            let now = self.now();
            if let Some((id, Wanted { inode, mut parts })) = state.drops.next(now) {
                let unsent = self.pages.unsent(inode, &parts);
                if !unsent.is_empty() {
                    parts = state.drops.skip(id, &unsent);
                }
                state.threads.insert(id, rustix::thread::gettid());
                self.see_to_watch(&state);
                return Some((id, Wanted { inode, parts }));
            }
            if !state.drops.begin_idling() {
                state.drops.end_thread();
                return None;
            }
            state = self.work.wait(state);
            state.drops.end_idling();
        }
    }

    /// Makes sure that the watching thread checks in time what has just changed.
    fn see_to_watch(&self, state: &State) {
        let is_sooner = |(at, _): &(u64, Wanted)| state.watched_until.is_none_or(|until| *at < until);
        if state.drops.is_too_late(state.watched_until, self.now())
            || state.later.front().is_some_and(is_sooner)
        {
            self.time.notify_one();
        }
    }

    /// Checks what is late, until the mount ends.
    fn watch(self: &Arc<Shared>) {
        let mut state = self.lock();
        while state.pool.is_some() {
            let now = self.now();
            self.begin_later(&mut state, now);
            let later = state.later.front().map(|(at, _)| *at);
            match later.into_iter().chain(state.drops.next_look()).min() {
                None => state = self.time.wait(state),
                Some(at) if at > now => {
                    state.watched_until = Some(at);
                    let wait = Duration::from_millis(at - now);
                    state = self.time.wait_timeout(state, wait);
                    state.watched_until = None;
                }
                Some(_) => {
                    let State { drops, threads, .. } = &mut *state;
                    let held = |drop: &Wanted| self.pages.held(drop.inode, &drop.parts);
                    let effects =
                        drops.look(now, held, |id| threads.get(&id).is_none_or(|thread| sleeps(*thread)));
                    // A stuck drop has given its place to others, and each added drop is to begin.
                    for _ in 0..=state.drops.take_added() {
                        self.begin_threads(&mut state);
                    }
                    drop(state);
                    self.carry_out(effects);
                    state = self.lock();
                }
            }
        }
    }

    /// Begins drops for which the time has come.
    fn begin_later(self: &Arc<Shared>, state: &mut State, now: u64) {
        while state.later.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, wanted)) = state.later.pop_front() else { return };
            let effects = state.drops.add(wanted, For::Nobody, now);
            debug_assert!(effects.is_none(), "nobody waits for it");
            self.begin_threads(state);
        }
    }

    fn carry_out(&self, effects: impl IntoIterator<Item = Effect<Then>>) {
        for effect in effects {
            match effect {
                Effect::Done(server, number) => self.tell(server, EndRecalls::of_done(&[number])),
                Effect::Blocked(server, number) => {
                    self.tell(server, EndRecalls { blocked: vec![number], ..EndRecalls::default() });
                }
                Effect::Relaxed(server, number) => {
                    self.tell(server, EndRecalls { relaxed: vec![number], ..EndRecalls::default() });
                }
                Effect::DroppedAll(server, life) => {
                    let pool = self.lock().pool.clone();
                    if let Some(pool) = pool {
                        pool.has_dropped_all(server, life);
                    }
                }
                Effect::Go(then) => then(),
            }
        }
    }

    fn tell(&self, server: ServerId, ended: EndRecalls) {
        let pool = self.lock().pool.clone();
        if let Some(pool) = pool {
            pool.end_recalls(server, ended);
        }
    }

    /// Milliseconds since the mount began.
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Whether a thread of this process is asleep in the kernel, rather than waiting for a processor. One whose state cannot be
/// read counts as asleep.
fn sleeps(thread: Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    let state = std::fs::read_to_string(path).ok();
    // The state follows the name, which is in parentheses and may have some.
    state.as_deref().and_then(|stat| stat.rsplit_once(") ")).is_none_or(|(_, rest)| !rest.starts_with('R'))
}

/// The part of a range before its last page, and the part in that page.
fn last_page_of(range: ByteRange) -> (ByteRange, ByteRange) {
    let page = rustix::param::page_size() as u64;
    let start = (range.end.saturating_sub(1) / page * page).max(range.start);
    (ByteRange { end: start, ..range }, ByteRange { start, ..range })
}
