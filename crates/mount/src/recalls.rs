//! Which pages are to be dropped, by how many threads, and who hears what of it, and when.
//!
//! The kernel waits for locked pages, and a drop writes back what programs stored, by requests to this very mount. So
//! threads of their own drop ([`crate::droppers`]), and this decides: nothing here waits, or knows what time it is. A drop that cannot go on
//! must not hold up others, so that there are more threads when all are stuck, and no file gets all of them.
//!
//! Two machines may write one page at once. The kernel of each has it locked until its write is answered, and the server answers
//! each when the other has dropped the page. So a recall that is not done in a while, when requests are under way that may hold some of its pages,
//! has the others dropped beside them, and is then told to be *blocked*: nobody waits for it any more. What no request holds comes to an end when
//! it begins, so it never waits for a thread behind drops that are stuck.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use ramlace_base::{ByteRange, InodeId, ServerId, limits};

use self::job::{Job, Late, RestDrop};
use crate::pages::WHOLE;

mod job;
#[cfg(test)]
mod tests;

/// Threads that stay when there is nothing to do.
pub(crate) const IDLE_THREADS_MAX: usize = 16;
/// Threads at all.
const THREADS_MAX: usize = 96;
/// Drops of one file at once, beside those that wait for requests.
const DROPS_PER_FILE_MAX: usize = 8;
/// Those: what one waits for may wait for another one.
const LATE_DROPS_PER_FILE_MAX: usize = 48;
/// Drops that wait for a thread; a server takes the lease of whom it does not hear of another one.
const DROPS_MAX: usize = 65_536;
/// Drops of one file of what no request held when they were made, beside all those: requests that have come since may hold them up.
const FREE_DROPS_PER_FILE_MAX: usize = 16;
/// Threads for such drops, when all others are stuck.
const FREE_THREADS_MAX: usize = 32;
/// A drop that takes longer than this waits for a request.
const LATE_MILLIS: u64 = 20;
/// Whoever may hold the pages itself waits for a drop for so long. Few of them do: a machine with much to do takes longer than usual to
/// drop them, and a write that is answered before may show its program the bytes of before, and write them back.
pub(crate) const HOLDER_WAITS_MILLIS_MAX: u64 = 250;
/// Whoever surely holds none of them waits for what reads and writes them back, which has a time of its own: so long.
pub(crate) const WAITING_MILLIS_MAX: u64 = limits::DATA_RECALL_WRITING_MILLIS;
/// When to look at what is of no interest until it begins, or is over.
const NEVER: u64 = u64::MAX;

/// For whom pages are dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum For<T> {
    /// A server has recalled them.
    Server(ServerId, u64),
    /// Somebody goes on when they are gone, or after so many milliseconds.
    Waiting(T, u64),
    /// They are the part of another drop that no request holds.
    Rest(u64),
    /// A server waits until all is dropped that was kept before this life of it.
    Life(ServerId, u64),
    /// Nobody waits.
    Nobody,
}

/// What follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect<T> {
    /// A recall is done.
    Done(ServerId, u64),
    /// A recall waits for a request of this kernel.
    Blocked(ServerId, u64),
    /// All is dropped that was kept of a server before this life of it.
    DroppedAll(ServerId, u64),
    /// Whoever waited goes on.
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
    /// Those for servers' new lives, behind all others: what is recalled has a time.
    for_lives: VecDeque<u64>,
    running: HashMap<InodeId, Running>,
    /// How many drops of a file are not over.
    owed: HashMap<InodeId, usize>,
    recalled: HashSet<(ServerId, u64)>,
    /// The life of each server that has begun anew, and how many files have yet to be dropped that were kept before.
    lives: HashMap<ServerId, (u64, usize)>,
    threads: usize,
    idle: usize,
    /// Drops under way that are not free, and free ones that wait for a thread.
    usual: usize,
    free_waiting: usize,
    /// Drops that look after look has added or freed, and nobody was woken for.
    added: usize,
}

/// Drops of one file that are under way.
#[derive(Clone, Copy, Default)]
struct Running {
    count: usize,
    late: usize,
    free: usize,
}

impl<T> Drops<T> {
    /// None yet.
    pub(crate) fn new() -> Drops<T> {
        Drops {
            jobs: BTreeMap::new(),
            last: 0,
            waiting: VecDeque::new(),
            for_lives: VecDeque::new(),
            running: HashMap::new(),
            owed: HashMap::new(),
            recalled: HashSet::new(),
            lives: HashMap::new(),
            threads: 0,
            idle: 0,
            usual: 0,
            free_waiting: 0,
            added: 0,
        }
    }

    /// Pages are to be dropped. What follows at once: whoever waits goes on when there are too many already. A recall that is told again
    /// while it is not over is the same.
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

    /// Pages of a relaxed file are recalled: the server is told at once that nobody waits for them.
    pub(crate) fn add_relaxed(
        &mut self,
        drop: Wanted,
        (server, number): (ServerId, u64),
        now: u64,
    ) -> Option<Effect<T>> {
        let before = self.last;
        let effect = self.add(drop, For::Server(server, number), now);
        // It was told again, or there are too many already, where none has come.
        if let Some(job) = self.jobs.get_mut(&self.last).filter(|_| self.last != before) {
            (job.is_relaxed, job.look_at) = (true, now);
        }
        effect
    }

    /// A server has a new life: all files are to be dropped, and what it had recalled before is nothing to it. What follows at once.
    pub(crate) fn add_life(&mut self, server: ServerId, life: u64, files: &[InodeId]) -> Option<Effect<T>> {
        self.forget(server);
        if files.is_empty() {
            return Some(Effect::DroppedAll(server, life));
        }
        self.lives.insert(server, (life, files.len()));
        for inode in files {
            let whole = Wanted { inode: *inode, parts: vec![WHOLE] };
            self.push(whole, For::Life(server, life), NEVER, 0);
        }
        None
    }

    fn push(&mut self, drop: Wanted, whom: For<T>, look_at: u64, now: u64) {
        self.last += 1;
        let for_life = matches!(whom, For::Life(..));
        let queue = if for_life { &mut self.for_lives } else { &mut self.waiting };
        queue.push_back(self.last);
        *self.owed.entry(drop.inode).or_default() += 1;
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

    /// Whether the kernel may have pages of this file that it is to drop.
    pub(crate) fn owes(&self, inode: InodeId) -> bool {
        self.owed.contains_key(&inode)
    }

    /// Whether one more thread is to begin; then it is counted.
    pub(crate) fn begin_thread(&mut self) -> bool {
        let most = THREADS_MAX + if self.free_waiting > 0 { FREE_THREADS_MAX } else { 0 };
        let needed = self.idle < self.waiting.len() + self.for_lives.len() && self.threads < most;
        self.threads += usize::from(needed);
        needed
    }

    /// A thread could not begin, or ends.
    pub(crate) fn end_thread(&mut self) {
        self.threads = self.threads.saturating_sub(1);
    }

    /// A thread has nothing to do; whether it stays.
    pub(crate) fn begin_idling(&mut self) -> bool {
        let stays = self.idle < IDLE_THREADS_MAX;
        self.idle += usize::from(stays);
        stays
    }

    pub(crate) fn end_idling(&mut self) {
        self.idle = self.idle.saturating_sub(1);
    }

    /// What a thread drops next.
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
            None => self.for_lives.remove(next_of(&self.for_lives)?)?,
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
                // Nobody waits for it any more, but others of its file for its thread.
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

    /// A thread has dropped, or the kernel has refused: then nobody hears that it was done.
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
                        // Whoever waits for the whole may hear of it now.
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
        if let Some(owed) = self.owed.get_mut(&job.drop.inode) {
            *owed -= 1;
            if *owed == 0 {
                self.owed.remove(&job.drop.inode);
            }
        }
        Some(job)
    }

    /// Nobody at a server knows of what it had recalled. The pages go all the same: what waits for its last life goes for the next one.
    fn forget(&mut self, server: ServerId) {
        self.recalled.retain(|(of, _)| *of != server);
        self.lives.remove(&server);
        let jobs = &self.jobs;
        let is_for_it = |id: &u64| {
            let whom = jobs.get(id).and_then(|job| job.whom.as_ref());
            matches!(whom, Some(For::Life(of, _)) if *of == server)
        };
        let (void, left): (VecDeque<u64>, VecDeque<u64>) =
            std::mem::take(&mut self.for_lives).into_iter().partition(is_for_it);
        self.for_lives = left;
        void.into_iter().for_each(|id| _ = self.remove(id));
        for job in self.jobs.values_mut() {
            if matches!(job.whom, Some(For::Server(of, _) | For::Life(of, _)) if of == server) {
                job.whom = Some(For::Nobody);
            }
        }
    }

    /// When to look next.
    pub(crate) fn next_look(&self) -> Option<u64> {
        self.jobs.values().map(|job| job.look_at).min().filter(|at| *at < NEVER)
    }

    /// Whether somebody who looks again no sooner than `until` would be too late for what began just now.
    pub(crate) fn is_too_late(&self, until: Option<u64>, now: u64) -> bool {
        let next = self.next_look();
        let is_late = |at, until| at < until && (until > now + LATE_MILLIS || at <= now);
        next.is_some_and(|at| until.is_none_or(|until| is_late(at, until)))
    }

    /// Time has gone by. `held`: which of some pages are held by requests that are under way.
    pub(crate) fn look(&mut self, now: u64, held: impl Fn(&Wanted) -> Vec<ByteRange>) -> Vec<Effect<T>> {
        let (mut effects, mut rests) = (Vec::new(), Vec::new());
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| job.look_at <= now) {
            if job.is_relaxed
                && !job.is_told
                && let Some(For::Server(server, number)) = job.whom
            {
                effects.push(Effect::Blocked(server, number));
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
                    match job.is_held_up(now, &held) {
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
                    }
                }
                other => job.whom = other,
            }
            job.look_at = if job.is_settled() { NEVER } else { now + LATE_MILLIS };
        }
        self.added += rests.len();
        rests.into_iter().for_each(|(whole, rest)| self.push_rest(whole, rest, now));
        effects
    }

    /// How many drops were added or freed by looks since this was asked last.
    pub(crate) fn take_added(&mut self) -> usize {
        std::mem::take(&mut self.added)
    }
}
