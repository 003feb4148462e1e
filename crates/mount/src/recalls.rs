//! Decides which pages are dropped, by how many threads, and what is reported to which server, and when.
//!
//! The kernel waits for locked pages, and a drop writes back what programs stored, by requests to this very
//! mount. So separate threads drop ([`crate::droppers`]), and this decides: nothing here waits or reads a
//! clock. A stuck drop must not delay others, so there are more threads when all are stuck, and no file gets
//! all of them.
//!
//! Two machines may write one page at the same time. Each machine's kernel has it locked until its write is
//! answered, and the server answers each when the other has dropped the page: a deadlock. So when a recall is
//! not done after a while, and requests under way may hold some of its pages, its other pages are dropped,
//! and then it is reported as *blocked*: no change of bytes waits for it any more. A drop of pages that no request holds
//! ends soon once it begins, so it never waits for a thread behind stuck drops.
//!
//! A page that is locked for a read which waits for its turn to be sent needs no drop: nothing of before is in it, and what it
//! gets is newer than the recall. The server does not know of such a read, so a recall of these pages is reported as done.
//! It must not wait for the read, which may wait behind others that wait for this very recall.
//!
//! A recall of which nothing begins or ends to be dropped for long, because later requests hold some of each part or
//! no thread is left, is reported as blocked without that: to be fenced would show the same older bytes, and
//! lose stores besides. One of a relaxed file is always reported at once, and dropped all the same.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use ramlace_base::{ByteRange, InodeId, ServerId, limits};

use self::job::{Job, Late, RestDrop};
use crate::in_flight::{HeldPages, without};
use crate::pages::WHOLE;

mod job;
#[cfg(test)]
mod tests;

/// Threads that stay when there is nothing to do.
pub(crate) const IDLE_THREADS_MAX: usize = 16;
/// The limit of threads.
const THREADS_MAX: usize = 96;
/// Drops of one file at the same time, besides those that wait for requests.
const DROPS_PER_FILE_MAX: usize = 8;
/// The limit of those: one of them may wait for another.
const LATE_DROPS_PER_FILE_MAX: usize = 48;
/// Drops that wait for a thread; if there are more, the server gets no answer and takes the lease.
const DROPS_MAX: usize = 65_536;
/// Drops of one file, besides all those, of pages that no request held when they were made: later requests
/// may hold them up.
const FREE_DROPS_PER_FILE_MAX: usize = 16;
/// Threads for such drops, when all others are stuck.
const FREE_THREADS_MAX: usize = 32;
/// A drop that takes longer than this is waiting for a request.
const LATE_MILLIS: u64 = 20;
/// How long a write that may itself hold the pages waits for their drop. Few do hold them: on a busy machine
/// the drop takes longer than usual, and if the write is answered before it, the program may see old bytes,
/// and these may be written back.
pub(crate) const HOLDER_WAITS_MILLIS_MAX: u64 = 250;
/// The same for one that holds them only if the kernel has dropped them to get memory. A busy machine may give the
/// thread that drops them no processor for so long.
pub(crate) const UNLIKELY_HOLDER_WAITS_MILLIS_MAX: u64 = 4_000;
/// How long a write that certainly holds none of the pages waits for reads and write-backs of them, which
/// have a time limit of their own.
pub(crate) const WAITING_MILLIS_MAX: u64 = limits::DATA_RECALL_WRITING_MILLIS;
/// The next check of a drop that needs none until it begins, or is over.
const NEVER: u64 = u64::MAX;

/// The reason for a drop.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum For<T> {
    /// A server has recalled them.
    Server(ServerId, u64),
    /// A request continues when they are gone, or after so many milliseconds.
    Waiting(T, u64),
    /// The part of another drop's pages that no request holds.
    Rest(u64),
    /// A server waits until everything is dropped from before this incarnation of it.
    Life(ServerId, u64),
    /// Nothing waits for it.
    Nobody,
}

/// What follows from a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect<T> {
    /// A recall is done.
    Done(ServerId, u64),
    /// A recall waits for a request of this kernel.
    Blocked(ServerId, u64),
    /// A recall is of a relaxed file.
    Relaxed(ServerId, u64),
    /// Everything from before this incarnation of a server is dropped.
    DroppedAll(ServerId, u64),
    /// The waiting request continues.
    Go(T),
}

/// Pages to be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) inode: InodeId,
    pub(crate) parts: Vec<ByteRange>,
}

/// All drops that are not over. Times are in milliseconds.
pub(crate) struct Drops<T> {
    jobs: BTreeMap<u64, Job<T>>,
    last: u64,
    waiting: VecDeque<u64>,
    /// Drops of whole files because of a server that has restarted, or was not heard of, which come after all others:
    /// recalls have a time limit.
    of_all: VecDeque<u64>,
    running: HashMap<InodeId, Running>,
    /// The number of pending drops of each file.
    pending: HashMap<InodeId, usize>,
    recalled: HashSet<(ServerId, u64)>,
    /// The incarnation of each restarted server, and the number of files from before it that still have to be
    /// dropped.
    lives: HashMap<ServerId, (u64, usize)>,
    threads: usize,
    idle: usize,
    /// Drops under way that are not free, and free ones that wait for a thread.
    usual: usize,
    free_waiting: usize,
    /// Drops that checks have added or freed, and for which no thread was woken yet.
    added: usize,
}

/// The number of drops of one file that are under way.
#[derive(Clone, Copy, Default)]
struct Running {
    count: usize,
    late: usize,
    free: usize,
}

impl<T> Drops<T> {
    /// Without drops.
    pub(crate) fn new() -> Drops<T> {
        Drops {
            jobs: BTreeMap::new(),
            last: 0,
            waiting: VecDeque::new(),
            of_all: VecDeque::new(),
            running: HashMap::new(),
            pending: HashMap::new(),
            recalled: HashSet::new(),
            lives: HashMap::new(),
            threads: 0,
            idle: 0,
            usual: 0,
            free_waiting: 0,
            added: 0,
        }
    }

    /// Adds a drop; returns what follows at once: if there are too many already, a waiting request continues.
    /// A recall that is repeated before it is done is not added again.
    pub(crate) fn add(&mut self, drop: Wanted, whom: For<T>, now: u64) -> Option<Effect<T>> {
        if self.waiting.len() >= DROPS_MAX {
            return if let For::Waiting(who, _) = whom { Some(Effect::Go(who)) } else { None };
        }
        if let For::Server(server, number) = whom
            && !self.recalled.insert((server, number))
        {
            return None;
        }
        let same = |id: &u64| self.jobs.get(id).is_some_and(|job| job.drop == drop);
        if matches!(whom, For::Nobody) && self.waiting.iter().any(same) {
            return None;
        }
        let look_at = match whom {
            For::Waiting(_, millis) => now + millis,
            For::Server(..) => now + LATE_MILLIS,
            For::Rest(_) | For::Life(..) | For::Nobody => NEVER,
        };
        self.push(drop, whom, look_at, now);
        None
    }

    /// Pages of a relaxed file are recalled: the next check reports to the server that nobody waits for them.
    pub(crate) fn add_relaxed(
        &mut self,
        drop: Wanted,
        (server, number): (ServerId, u64),
        now: u64,
    ) -> Option<Effect<T>> {
        let before = self.last;
        let effect = self.add(drop, For::Server(server, number), now);
        // None was added if it was a repetition, or there are too many already.
        if let Some(job) = self.jobs.get_mut(&self.last).filter(|_| self.last != before) {
            (job.is_relaxed, job.look_at) = (true, now);
        }
        effect
    }

    /// A server has restarted: all files are to be dropped, and its earlier recalls are void. Returns what
    /// follows at once.
    pub(crate) fn add_life(&mut self, server: ServerId, life: u64, files: &[InodeId]) -> Option<Effect<T>> {
        self.forget(server);
        if files.is_empty() {
            return Some(Effect::DroppedAll(server, life));
        }
        self.lives.insert(server, (life, files.len()));
        for inode in files {
            self.push_all(Wanted { inode: *inode, parts: vec![WHOLE] }, For::Life(server, life));
        }
        None
    }

    /// All pages of these files are to be dropped, however many they are; nobody waits for it.
    pub(crate) fn add_all(&mut self, files: Vec<Wanted>) {
        let queued = |id: &u64| self.jobs.get(id).map(|job| job.drop.inode);
        let queued: HashSet<InodeId> = self.of_all.iter().filter_map(queued).collect();
        files
            .into_iter()
            .filter(|file| !queued.contains(&file.inode))
            .for_each(|file| self.push_all(file, For::Nobody));
    }

    fn push_all(&mut self, file: Wanted, whom: For<T>) {
        self.note(file, whom, NEVER, 0);
        self.of_all.push_back(self.last);
    }

    fn push(&mut self, drop: Wanted, whom: For<T>, look_at: u64, now: u64) {
        self.note(drop, whom, look_at, now);
        self.waiting.push_back(self.last);
    }

    /// Gives a drop its number, which is to be added to a queue.
    fn note(&mut self, drop: Wanted, whom: For<T>, look_at: u64, now: u64) {
        self.last += 1;
        *self.pending.entry(drop.inode).or_default() += 1;
        let job = Job::new(drop, whom, look_at, now);
        self.free_waiting += usize::from(job.is_free);
        self.jobs.insert(self.last, job);
    }

    /// Drops the part of a recall that no request holds.
    fn push_rest(&mut self, whole: u64, rest: Wanted, now: u64) {
        let parts = rest.parts.clone();
        self.push(rest, For::Rest(whole), NEVER, now);
        let id = self.last;
        if let Some(whole) = self.jobs.get_mut(&whole) {
            whole.rest.drops.push(RestDrop { id, parts, runs: false });
        }
    }

    /// Whether the kernel may have pages of this file that it still has to drop.
    pub(crate) fn is_pending(&self, inode: InodeId) -> bool {
        self.pending.contains_key(&inode)
    }

    /// Whether one more thread is to begin; if so, it is counted.
    pub(crate) fn begin_thread(&mut self) -> bool {
        let most = THREADS_MAX + if self.free_waiting > 0 { FREE_THREADS_MAX } else { 0 };
        let needed = self.idle < self.waiting.len() + self.of_all.len() && self.threads < most;
        self.threads += usize::from(needed);
        needed
    }

    /// A thread could not begin, or ends.
    pub(crate) fn end_thread(&mut self) {
        self.threads = self.threads.saturating_sub(1);
    }

    /// A thread has nothing to do; returns whether it stays.
    pub(crate) fn begin_idling(&mut self) -> bool {
        let stays = self.idle < IDLE_THREADS_MAX;
        self.idle += usize::from(stays);
        stays
    }

    pub(crate) fn end_idling(&mut self) {
        self.idle = self.idle.saturating_sub(1);
    }

    /// The next drop for a thread.
    pub(crate) fn next(&mut self, now: u64) -> Option<(u64, Wanted)> {
        let threads_left = self.usual < THREADS_MAX;
        let has_place = |running: &Running| threads_left && running.count < DROPS_PER_FILE_MAX;
        let may_run = |id: &u64| {
            self.jobs.get(id).is_some_and(|job| {
                let running = self.running.get(&job.drop.inode).copied().unwrap_or_default();
                has_place(&running) || (job.is_free && running.free < FREE_DROPS_PER_FILE_MAX)
            })
        };
        let next_of = |queue: &VecDeque<u64>| queue.iter().position(may_run);
        let id = match next_of(&self.waiting) {
            Some(at) => self.waiting.remove(at)?,
            None => self.of_all.remove(next_of(&self.of_all)?)?,
        };
        let job = self.jobs.get_mut(&id)?;
        (job.runs, job.moved) = (true, now);
        let (drop, whole) = (job.drop.clone(), job.whole());
        self.free_waiting -= usize::from(job.is_free);
        let running = self.running.entry(drop.inode).or_default();
        if has_place(running) {
            running.count += 1;
            self.usual += 1;
            job.is_free = false;
            if job.look_at == NEVER {
                // The reason for this drop does not wait, but other drops of its file wait for its thread.
                job.look_at = now + LATE_MILLIS;
            }
        } else {
            running.free += 1;
        }
        if let Some(whole) = whole.and_then(|whole| self.jobs.get_mut(&whole)) {
            whole.moved = now;
            whole.rest.drops.iter_mut().filter(|rest| rest.id == id).for_each(|rest| rest.runs = true);
        }
        Some((id, drop))
    }

    /// Of what a thread is about to drop for a server, or for a write that servers have, these pages are locked for reads that
    /// are not sent yet. Returns what is left to be dropped.
    pub(crate) fn skip(&mut self, id: u64, unsent: &[ByteRange]) -> Vec<ByteRange> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        if matches!(job.whom, Some(For::Server(..) | For::Rest(_) | For::Waiting(..))) {
            let parts = job.drop.parts.iter().flat_map(|part| without(*part, unsent.iter().copied()));
            job.drop.parts = parts.collect();
        }
        let (left, whole) = (job.drop.parts.clone(), job.whole());
        if let Some(whole) = whole.and_then(|whole| self.jobs.get_mut(&whole)) {
            whole.note_gone(unsent);
        }
        left
    }

    /// A thread is done: it has dropped the pages, or the kernel has refused, which is not reported as done.
    pub(crate) fn over(&mut self, id: u64, dropped: bool, now: u64) -> Option<Effect<T>> {
        let job = self.remove(id)?;
        if let Some(running) = self.running.get_mut(&job.drop.inode) {
            let counted = match (job.is_free, job.is_late) {
                (true, _) => &mut running.free,
                (_, true) => &mut running.late,
                _ => &mut running.count,
            };
            *counted -= 1;
            self.usual -= usize::from(!job.is_free);
            if running.count + running.late + running.free == 0 {
                self.running.remove(&job.drop.inode);
            }
        }
        match job.whom? {
            For::Server(server, number) => {
                self.recalled.remove(&(server, number));
                dropped.then_some(Effect::Done(server, number))
            }
            For::Waiting(who, _) => Some(Effect::Go(who)),
            For::Rest(whole) => {
                if let Some(whole) = self.jobs.get_mut(&whole) {
                    whole.rest.drops.retain(|rest| rest.id != id);
                    whole.rest.is_refused |= !dropped;
                    whole.rest.dropped.extend(job.drop.parts.iter().filter(|_| dropped));
                    whole.moved = now;
                    if !whole.is_told {
                        // Perhaps the whole recall can be reported now.
                        whole.look_at = 0;
                    }
                }
                None
            }
            For::Life(server, life) => {
                let (of, left) = self.lives.get_mut(&server).filter(|_| dropped)?;
                *left -= usize::from(*of == life);
                if *left > 0 {
                    return None;
                }
                self.lives.remove(&server);
                Some(Effect::DroppedAll(server, life))
            }
            For::Nobody => None,
        }
    }

    fn remove(&mut self, id: u64) -> Option<Job<T>> {
        let job = self.jobs.remove(&id)?;
        if let Some(pending) = self.pending.get_mut(&job.drop.inode) {
            *pending -= 1;
            if *pending == 0 {
                self.pending.remove(&job.drop.inode);
            }
        }
        Some(job)
    }

    /// A restarted server does not know its earlier recalls. The pages are dropped all the same; drops for
    /// its last incarnation are replaced by those for the new one.
    fn forget(&mut self, server: ServerId) {
        self.recalled.retain(|(of, _)| *of != server);
        self.lives.remove(&server);
        let jobs = &self.jobs;
        let is_for_it = |id: &u64| {
            let whom = jobs.get(id).and_then(|job| job.whom.as_ref());
            matches!(whom, Some(For::Life(of, _)) if *of == server)
        };
        let (void, left): (VecDeque<u64>, VecDeque<u64>) =
            std::mem::take(&mut self.of_all).into_iter().partition(is_for_it);
        self.of_all = left;
        void.into_iter().for_each(|id| _ = self.remove(id));
        for job in self.jobs.values_mut() {
            if matches!(job.whom, Some(For::Server(of, _) | For::Life(of, _)) if of == server) {
                job.whom = Some(For::Nobody);
            }
        }
    }

    /// When to check next.
    pub(crate) fn next_look(&self) -> Option<u64> {
        self.jobs.values().map(|job| job.look_at).min().filter(|at| *at < NEVER)
    }

    /// Whether a check at `until` or later would be too late for what has just changed.
    pub(crate) fn is_too_late(&self, until: Option<u64>, now: u64) -> bool {
        let next = self.next_look();
        let is_late = |at, until| at < until && (until > now + LATE_MILLIS || at <= now);
        next.is_some_and(|at| until.is_none_or(|until| is_late(at, until)))
    }

    /// Checks the drops that are due. `held`: what requests under way hold of some pages; `sleeps`: whether the
    /// thread of a drop is asleep in the kernel.
    pub(crate) fn look(
        &mut self,
        now: u64,
        held: impl Fn(&Wanted) -> HeldPages,
        sleeps: impl Fn(u64) -> bool,
    ) -> Vec<Effect<T>> {
        let (mut effects, mut rests, mut done) = (Vec::new(), Vec::new(), Vec::new());
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| job.look_at <= now) {
            if job.is_relaxed
                && !job.is_told
                && let Some(For::Server(server, number)) = job.whom
            {
                effects.push(Effect::Relaxed(server, number));
                (job.is_told, job.look_at) = (true, now + LATE_MILLIS);
                continue;
            }
            let is_usual = job.runs && !job.is_late && !job.is_free;
            if let Some(running) = self.running.get_mut(&job.drop.inode).filter(|_| is_usual)
                && running.late < LATE_DROPS_PER_FILE_MAX
            {
                running.count -= 1;
                running.late += 1;
                job.is_late = true;
            }
            match job.whom.take() {
                Some(For::Waiting(who, _)) => effects.push(Effect::Go(who)),
                Some(For::Server(server, number)) => {
                    job.whom = Some(For::Server(server, number));
                    match job.is_held_up(now, &held(&job.drop), job.runs && sleeps(*id)) {
                        Late::Wait => {}
                        Late::Begin => {
                            job.is_free = true;
                            self.free_waiting += 1;
                            self.added += 1;
                        }
                        Late::DropRest(parts) => {
                            rests.push((*id, Wanted { inode: job.drop.inode, parts }));
                        }
                        Late::Blocked => {
                            effects.push(Effect::Blocked(server, number));
                            job.is_told = true;
                        }
                        Late::Done => {
                            effects.push(Effect::Done(server, number));
                            self.recalled.remove(&(server, number));
                            done.push(*id);
                        }
                    }
                }
                other => job.whom = other,
            }
            job.look_at = if job.needs_no_check() { NEVER } else { now + LATE_MILLIS };
        }
        self.added += rests.len();
        rests.into_iter().for_each(|(whole, rest)| self.push_rest(whole, rest, now));
        done.into_iter().for_each(|id| self.is_done(id));
        effects
    }

    /// A recall is done although its drop is not over: what has not begun of it is not dropped any more.
    fn is_done(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.whom = Some(For::Nobody);
        let rests = job.rest.drops.iter().map(|rest| rest.id);
        let of_it: Vec<u64> = rests.chain([id]).collect();
        for id in of_it {
            if self.jobs.get(&id).is_some_and(|job| !job.runs)
                && let Some(job) = self.remove(id)
            {
                self.waiting.retain(|other| *other != id);
                self.free_waiting -= usize::from(job.is_free);
            }
        }
    }

    /// The number of drops that checks have added or freed since the last call.
    pub(crate) fn take_added(&mut self) -> usize {
        std::mem::take(&mut self.added)
    }
}
