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

use ramlace_base::{ByteRange, InodeId, ServerId};

use crate::pages::WHOLE;
use crate::under_way::without;

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
/// Drops of what requests do not hold of a late recall that are under way at once: requests that have come since may hold them up.
const RESTS_MAX: usize = 4;
/// A recall of which nothing more could be dropped for so long is told to be blocked, though programs may still read what is left: a server
/// would wait for it no longer soon after, and take back what they have stored.
const STUCK_MILLIS: u64 = 2_000;
/// A drop that takes longer than this waits for a request.
const LATE_MILLIS: u64 = 20;
/// Whoever waits for a drop himself goes on after so long. Few of them hold the pages: a machine with much to do takes longer than usual to
/// drop them, and a write that is answered before may show its program the bytes of before.
const WAITING_MILLIS_MAX: u64 = 250;
/// When to look at what is of no interest until it begins, or is over.
const NEVER: u64 = u64::MAX;

/// For whom pages are dropped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum For<T> {
    /// A server has recalled them.
    Server(ServerId, u64),
    /// Somebody goes on when they are gone, or after a while: he may hold them himself.
    Waiting(T),
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

struct Job<T> {
    drop: Wanted,
    whom: Option<For<T>>,
    /// Its server was told that it waits for a request.
    is_told: bool,
    /// When to look whether it takes long.
    look_at: u64,
    runs: bool,
    /// It waits for a request, and does not count among those that run.
    is_late: bool,
    /// No request held its pages when it had yet to begin: it begins, or has begun, where there is no place among others of its file.
    is_free: bool,
    /// When something of it was dropped last, or began to be.
    moved: u64,
    rest: Rest,
}

/// The part of a late recall that no request holds.
#[derive(Default)]
struct Rest {
    /// It was dropped.
    dropped: Vec<ByteRange>,
    /// Drops of it that are not over.
    drops: Vec<RestDrop>,
    /// The kernel would not.
    is_refused: bool,
}

struct RestDrop {
    id: u64,
    parts: Vec<ByteRange>,
    runs: bool,
}

/// What is to be done about a recall that takes long.
enum Late {
    /// It comes to its end by itself: it waits for what it writes back itself, or for a thread.
    Wait,
    /// Nothing holds it, and it has no thread.
    Begin,
    /// These pages are held by nothing.
    DropRest(Vec<ByteRange>),
    /// All others are dropped, or cannot be.
    Blocked,
}

/// All drops that are not over. Times are in milliseconds.
pub(crate) struct Drops<T> {
    /// Nobody is to wait for a recall.
    relaxed: bool,
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
    /// None yet. `relaxed`: servers are told at once that nobody waits for what they recall.
    pub(crate) fn new(relaxed: bool) -> Drops<T> {
        Drops {
            relaxed,
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
            return if let For::Waiting(who) = whom { Some(Effect::Go(who)) } else { None };
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
            For::Waiting(_) => now + WAITING_MILLIS_MAX,
            For::Server(..) if self.relaxed => now,
            For::Server(..) => now + LATE_MILLIS,
            For::Rest(_) | For::Life(..) | For::Nobody => NEVER,
        };
        self.push(drop, whom, look_at, now);
        None
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
        let is_free = matches!(whom, For::Rest(_));
        self.free_waiting += usize::from(is_free);
        let (is_told, runs, is_late, rest) = (false, false, false, Rest::default());
        let whom = Some(whom);
        self.jobs.insert(
            self.last,
            Job { drop, whom, is_told, look_at, runs, is_late, is_free, moved: now, rest },
        );
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
            For::Waiting(who) => Some(Effect::Go(who)),
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
        // What a relaxed mount is told has no time.
        let in_time = if self.relaxed { now } else { now + LATE_MILLIS };
        let next = self.next_look();
        next.is_some_and(|at| until.is_none_or(|until| at < until && (until > in_time || at <= now)))
    }

    /// Time has gone by. `held`: which of some pages are held by requests that are under way.
    pub(crate) fn look(&mut self, now: u64, held: impl Fn(&Wanted) -> Vec<ByteRange>) -> Vec<Effect<T>> {
        let (mut effects, mut rests) = (Vec::new(), Vec::new());
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| job.look_at <= now) {
            if self.relaxed
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
                Some(For::Waiting(who)) => effects.push(Effect::Go(who)),
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

impl<T> Job<T> {
    /// Whether requests hold what is left of a recall. What nothing holds goes first: programs may read it.
    fn is_held_up(&mut self, now: u64, held: impl Fn(&Wanted) -> Vec<ByteRange>) -> Late {
        let held = held(&self.drop);
        if self.is_told {
            // What held it is over: programs may read it, and nobody waits.
            let may_begin = held.is_empty() && !self.runs && !self.is_free;
            return if may_begin { Late::Begin } else { Late::Wait };
        }
        let gone = || held.iter().chain(&self.rest.dropped).copied();
        let left: Vec<ByteRange> = self.drop.parts.iter().flat_map(|part| without(*part, gone())).collect();
        if left.is_empty() {
            return Late::Blocked;
        }
        // Others hold a drop up only by what they hold now.
        let is_free = |parts: &[ByteRange]| {
            !parts.iter().any(|part| held.iter().any(|of| !of.intersection(*part).is_empty()))
        };
        if self.runs && held.is_empty()
            || self.rest.drops.iter().any(|rest| rest.runs && is_free(&rest.parts))
        {
            return Late::Wait;
        }
        if held.is_empty() && !self.is_free {
            return Late::Begin;
        }
        let all_run = self.rest.drops.len() < RESTS_MAX && self.rest.drops.iter().all(|rest| rest.runs);
        if all_run && !held.is_empty() && !self.rest.is_refused {
            return Late::DropRest(left);
        }
        if now >= self.moved + STUCK_MILLIS { Late::Blocked } else { Late::Wait }
    }

    /// The recall of which it is a part.
    fn whole(&self) -> Option<u64> {
        if let Some(For::Rest(whole)) = self.whom { Some(whole) } else { None }
    }

    /// There is nothing to say of it before it is over, or begins.
    fn is_settled(&self) -> bool {
        let is_recall = matches!(self.whom, Some(For::Server(..)));
        let has_place = self.is_late || self.is_free;
        if is_recall { self.is_told && has_place } else { has_place || !self.runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const HERE: ServerId = ServerId(1);

    fn page(inode: InodeId, at: u64) -> Wanted {
        Wanted { inode, parts: vec![ByteRange { start: at * 4096, end: (at + 1) * 4096 }] }
    }

    fn all(drop: &Wanted) -> Vec<ByteRange> {
        drop.parts.clone()
    }

    fn none(_: &Wanted) -> Vec<ByteRange> {
        Vec::new()
    }

    fn recall(drops: &mut Drops<&'static str>, inode: InodeId, number: u64, now: u64) {
        assert_eq!(drops.add(page(inode, number), For::Server(HERE, number), now), None);
    }

    #[test]
    fn a_recall_is_done_when_its_pages_are_dropped() {
        let mut drops = Drops::new(false);
        recall(&mut drops, FILE, 1, 0);
        recall(&mut drops, FILE, 1, 0);
        let (id, dropped) = drops.next(0).unwrap();
        assert_eq!(dropped, page(FILE, 1));
        recall(&mut drops, FILE, 1, 0);
        assert_eq!(drops.next(0), None, "it was told again before it was done");
        assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)));
        recall(&mut drops, FILE, 1, 0);
        let (id, _) = drops.next(0).expect("it is told again, so it was not heard that it was done");
        assert_eq!(drops.over(id, false, 0), None, "the kernel has not dropped them");
        assert!(drops.jobs.is_empty() && drops.running.is_empty() && drops.recalled.is_empty());
    }

    #[test]
    fn a_late_recall_is_blocked_once_while_a_request_holds_pages() {
        let mut drops = Drops::new(false);
        assert_eq!(drops.next_look(), None);
        recall(&mut drops, FILE, 1, 100);
        let (id, _) = drops.next(0).unwrap();
        assert_eq!(drops.next_look(), Some(100 + LATE_MILLIS));
        assert_eq!(drops.look(100 + LATE_MILLIS - 1, all), []);
        assert_eq!(drops.look(100 + LATE_MILLIS, none), [], "a load holds it, or a write-back");
        let again = drops.next_look().unwrap();
        assert_eq!(again, 100 + 2 * LATE_MILLIS);
        assert_eq!(drops.look(again, all), [Effect::Blocked(HERE, 1)]);
        assert_eq!(drops.next_look(), None);
        assert_eq!(drops.look(u64::MAX - 1, all), []);
        assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)));
    }

    // SEMANTICS 136.2
    #[test]
    fn pages_are_owed_until_the_last_drop_of_their_file_is_over() {
        let mut drops: Drops<&str> = Drops::new(true);
        for number in [1, 2] {
            drops.add(page(FILE, number), For::Server(HERE, number), 0);
        }
        assert!(drops.owes(FILE) && !drops.owes(InodeId(8)));
        let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
        drops.look(1, all);
        drops.over(ids[0], true, 0);
        assert!(drops.owes(FILE), "the other one is under way");
        drops.over(ids[1], true, 0);
        assert!(!drops.owes(FILE) && drops.owed.is_empty());
    }

    // SEMANTICS 117.5
    #[test]
    fn pages_beside_those_that_a_request_holds_are_dropped_before_it_is_told() {
        let mut drops: Drops<&str> = Drops::new(false);
        let parts = vec![ByteRange { start: 0, end: 10 * 4096 }];
        drops.add(Wanted { inode: FILE, parts }, For::Server(HERE, 1), 0);
        let (whole, _) = drops.next(0).unwrap();
        let held = |at: u64| move |_: &Wanted| page(FILE, at).parts;
        assert_eq!(drops.look(LATE_MILLIS, held(4)), []);
        let (rest, Wanted { parts, .. }) = drops.next(LATE_MILLIS).unwrap();
        let range = |first: u64, behind: u64| ByteRange { start: first * 4096, end: behind * 4096 };
        assert_eq!(parts, [range(0, 4), range(5, 10)]);
        assert_eq!(drops.look(2 * LATE_MILLIS, held(4)), [], "they are not dropped yet");
        assert_eq!(drops.over(rest, true, 0), None);
        assert!(
            drops.is_too_late(Some(3 * LATE_MILLIS), 2 * LATE_MILLIS + 1),
            "there is something to say at once"
        );
        // Another page is held by now: the one of before may be read again.
        assert_eq!(drops.look(2 * LATE_MILLIS + 1, held(7)), []);
        let (rest, Wanted { parts, .. }) = drops.next(3 * LATE_MILLIS).unwrap();
        assert_eq!(parts, [range(4, 5)]);
        assert_eq!(drops.over(rest, false, 0), None, "the kernel would not");
        assert_eq!(drops.look(3 * LATE_MILLIS, held(4)), [Effect::Blocked(HERE, 1)]);
        assert_eq!(drops.over(whole, true, 0), Some(Effect::Done(HERE, 1)));
        assert!(drops.jobs.is_empty() && drops.running.is_empty());
    }

    // SEMANTICS 117.3
    #[test]
    fn requests_that_come_again_and_again_hold_a_recall_up_a_few_times() {
        let mut drops: Drops<&str> = Drops::new(false);
        let parts = vec![ByteRange { start: 0, end: 100 * 4096 }];
        drops.add(Wanted { inode: FILE, parts }, For::Server(HERE, 1), 0);
        drops.next(0).unwrap();
        for turn in 1..=RESTS_MAX as u64 {
            assert_eq!(drops.look(turn * LATE_MILLIS, |_| page(FILE, turn).parts), []);
            // None of them comes to an end.
            drops.next(turn * LATE_MILLIS).expect("it may be held up by the request that has come since");
        }
        let last = RESTS_MAX as u64 * LATE_MILLIS;
        let now = last + STUCK_MILLIS;
        assert_eq!(drops.look(now - 1, |_| page(FILE, 90).parts), [], "it may go on");
        let now = now + LATE_MILLIS;
        assert_eq!(drops.look(now, |_| page(FILE, RESTS_MAX as u64).parts), [], "nothing has come since");
        assert_eq!(drops.look(now + LATE_MILLIS, |_| page(FILE, 90).parts), [Effect::Blocked(HERE, 1)]);
    }

    // SEMANTICS 117.5
    #[test]
    fn a_recall_is_not_blocked_while_pages_are_dropped_that_no_request_holds() {
        let mut drops: Drops<&str> = Drops::new(false);
        let parts = vec![ByteRange { start: 0, end: 2049 * 4096 }];
        drops.add(Wanted { inode: FILE, parts }, For::Server(HERE, 1), 0);
        drops.next(0).unwrap();
        let held = |_: &Wanted| page(FILE, 0).parts;
        assert_eq!(drops.look(LATE_MILLIS, held), []);
        let (rest, _) = drops.next(LATE_MILLIS).unwrap();
        // They are written back one after the other.
        let turns = 2..=2 * STUCK_MILLIS / LATE_MILLIS;
        turns.for_each(|turn| assert_eq!(drops.look(turn * LATE_MILLIS, held), []));
        let now = 3 * STUCK_MILLIS;
        assert_eq!(drops.over(rest, true, now), None);
        assert_eq!(drops.look(now, held), [Effect::Blocked(HERE, 1)]);
    }

    /// All threads of a file are stuck; the recalls have two pages each.
    fn stuck() -> Drops<&'static str> {
        let mut drops = Drops::new(false);
        for number in 0..(LATE_DROPS_PER_FILE_MAX + DROPS_PER_FILE_MAX) as u64 {
            drops.add(two_pages(number), For::Nobody, 0);
        }
        for now in 0..=LATE_DROPS_PER_FILE_MAX as u64 {
            while drops.next(now * LATE_MILLIS).is_some() {}
            drops.look(now * LATE_MILLIS, all);
        }
        assert!(drops.waiting.is_empty());
        drops
    }

    fn two_pages(at: u64) -> Wanted {
        Wanted { inode: FILE, parts: vec![ByteRange { start: 2 * at * 4096, end: (2 * at + 2) * 4096 }] }
    }

    fn first_page(drop: &Wanted) -> Vec<ByteRange> {
        vec![ByteRange { end: drop.parts[0].start + 4096, ..drop.parts[0] }]
    }

    // SEMANTICS 117.5
    #[test]
    fn what_no_request_holds_is_dropped_though_all_threads_of_its_file_are_stuck() {
        let mut drops = stuck();
        let now = 10_000;
        for number in 100..200 {
            drops.add(two_pages(number), For::Server(HERE, number), now);
        }
        assert_eq!(drops.next(now), None);
        // Requests hold a page of the one half, and nothing of the other.
        let held = |drop: &Wanted| {
            let is_held = drop.parts[0].start < 300 * 4096;
            if is_held { first_page(drop) } else { Vec::new() }
        };
        let (mut done, mut blocked) = (0, 0);
        for now in (0..10).map(|turn| now + turn * LATE_MILLIS) {
            while let Some((id, _)) = drops.next(now) {
                done += usize::from(matches!(drops.over(id, true, now), Some(Effect::Done(..))));
            }
            blocked += drops.look(now, held).len();
        }
        assert_eq!((done, blocked), (50, 50));
        // Those are dropped as well when nothing holds them any more.
        let now = now + 20 * LATE_MILLIS;
        assert_eq!(drops.look(now, none), []);
        while let Some((id, _)) = drops.next(now) {
            done += usize::from(matches!(drops.over(id, true, now), Some(Effect::Done(..))));
        }
        assert_eq!((done, drops.free_waiting), (100, 0));
    }

    // SEMANTICS 117.3
    #[test]
    fn recalls_of_which_no_part_can_begin_to_be_dropped_are_blocked_in_time() {
        let mut drops = stuck();
        let (now, count) = (10_000, 100);
        (100..100 + count)
            .for_each(|number| _ = drops.add(two_pages(number), For::Server(HERE, number), now));
        let mut told = Vec::new();
        let end = now + STUCK_MILLIS + 2 * LATE_MILLIS;
        for now in (now..=end).step_by(LATE_MILLIS as usize) {
            // None of them comes to its end.
            while drops.next(now).is_some() {}
            told.extend(drops.look(now, first_page));
            assert!(told.is_empty() || now >= 10_000 + STUCK_MILLIS);
        }
        assert_eq!(told.len(), count as usize - FREE_DROPS_PER_FILE_MAX, "those that cannot begin, and once");
        assert_eq!(drops.take_added() as u64, count);
        assert_eq!(drops.take_added(), 0);
    }

    // SEMANTICS 136.1
    #[test]
    fn nobody_waits_for_what_a_relaxed_mount_is_to_drop() {
        let mut drops: Drops<&str> = Drops::new(true);
        recall(&mut drops, FILE, 1, 100);
        assert_eq!(drops.next_look(), Some(100));
        assert!(drops.is_too_late(None, 100));
        assert_eq!(drops.look(100, none), [Effect::Blocked(HERE, 1)], "it is told at once, and once");
        let (id, _) = drops.next(100).unwrap();
        assert_eq!(drops.look(100 + LATE_MILLIS, all), []);
        assert_eq!(drops.next_look(), None);
        assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)), "and when it is done");
        recall(&mut drops, FILE, 2, 200);
        assert!(
            drops.is_too_late(Some(200 + LATE_MILLIS), 200),
            "who waits for the time of another one is woken"
        );
        drops.look(200, none);
        assert!(!drops.is_too_late(Some(200 + LATE_MILLIS), 201));
    }

    #[test]
    fn whoever_waits_goes_on_when_they_are_dropped_or_after_a_while() {
        let mut drops = Drops::new(false);
        drops.add(page(FILE, 1), For::Waiting("first"), 0);
        drops.add(page(FILE, 2), For::Waiting("second"), 5);
        let (first, _) = drops.next(0).unwrap();
        let (second, _) = drops.next(0).unwrap();
        assert_eq!(drops.over(first, true, 0), Some(Effect::Go("first")));
        assert_eq!(drops.look(5 + WAITING_MILLIS_MAX - 1, all), []);
        assert_eq!(drops.look(5 + WAITING_MILLIS_MAX, none), [Effect::Go("second")]);
        assert_eq!((drops.look(9_999, all), drops.next_look()), (vec![], None));
        assert_eq!(drops.over(second, true, 0), None);
    }

    #[test]
    fn a_stuck_file_leaves_threads_to_others() {
        let mut drops = Drops::new(false);
        for number in 0..100 {
            recall(&mut drops, FILE, number, 0);
        }
        let stuck: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
        assert_eq!(stuck.len(), DROPS_PER_FILE_MAX);
        recall(&mut drops, InodeId(8), 100, 0);
        assert_eq!(drops.next(0).unwrap().1.inode, InodeId(8));
        assert_eq!(drops.next(0), None);
        drops.over(stuck[0], true, 0);
        assert_eq!(drops.next(0).unwrap().1, page(FILE, DROPS_PER_FILE_MAX as u64));
    }

    #[test]
    fn what_is_stuck_leaves_others_of_its_file_a_thread() {
        let mut drops = Drops::new(false);
        for number in 0..100 {
            recall(&mut drops, FILE, number, 0);
        }
        let mut ids = Vec::new();
        for turn in 1..20 {
            ids.extend(std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id));
            drops.look(turn * LATE_MILLIS, none);
        }
        assert_eq!(ids.len(), LATE_DROPS_PER_FILE_MAX + DROPS_PER_FILE_MAX + FREE_DROPS_PER_FILE_MAX);
        ids.drain(..).for_each(|id| _ = drops.over(id, true, 0));
        assert!(drops.running.is_empty());
        let more = std::iter::from_fn(|| drops.next(0)).count();
        assert_eq!(more, DROPS_PER_FILE_MAX + FREE_DROPS_PER_FILE_MAX);
    }

    // SEMANTICS 128.7
    #[test]
    fn what_is_blocked_before_it_begins_keeps_no_thread_from_others() {
        let mut drops = Drops::new(false);
        for number in 0..100 {
            recall(&mut drops, FILE, number, 0);
        }
        let begin = |drops: &mut Drops<&str>, now| std::iter::from_fn(|| drops.next(now)).count();
        let mut begun = begin(&mut drops, 0);
        assert_eq!(drops.look(LATE_MILLIS, all).len(), 100, "each of them is told once, begun or not");
        let mut now = LATE_MILLIS;
        while let more @ 1.. = begin(&mut drops, now) {
            begun += more;
            now += LATE_MILLIS;
            assert_eq!(drops.look(now, all), []);
        }
        assert_eq!(begun, LATE_DROPS_PER_FILE_MAX + DROPS_PER_FILE_MAX);
    }

    // SEMANTICS 128.7
    #[test]
    fn what_is_dropped_for_nobody_keeps_no_thread_from_others() {
        let mut drops: Drops<&str> = Drops::new(false);
        for number in 0..DROPS_PER_FILE_MAX as u64 {
            drops.add(page(FILE, number), For::Nobody, 0);
        }
        assert_eq!(drops.next_look(), None, "there is nothing to say of them");
        assert_eq!(std::iter::from_fn(|| drops.next(5)).count(), DROPS_PER_FILE_MAX);
        recall(&mut drops, FILE, 100, 5);
        assert_eq!(drops.next(5), None);
        assert_eq!((drops.next_look(), drops.look(5 + LATE_MILLIS, none)), (Some(5 + LATE_MILLIS), vec![]));
        assert_eq!(drops.next(6 + LATE_MILLIS).unwrap().1, page(FILE, 100));
    }

    #[test]
    fn threads_begin_when_all_are_at_work_and_few_stay() {
        let mut drops = Drops::new(false);
        assert!(!drops.begin_thread(), "there is nothing to do");
        for number in 0..200 {
            recall(&mut drops, InodeId(100 + number), number, 0);
        }
        let begun: Vec<u64> =
            std::iter::from_fn(|| drops.begin_thread().then(|| drops.next(0).unwrap().0)).collect();
        assert_eq!((begun.len(), drops.next(0)), (THREADS_MAX, None));
        begun.into_iter().for_each(|id| _ = drops.over(id, true, 0));
        let stay = (0..THREADS_MAX).filter(|_| drops.begin_idling()).count();
        assert_eq!(stay, IDLE_THREADS_MAX);
        (stay..THREADS_MAX).for_each(|_| drops.end_thread());
        assert!(drops.begin_thread(), "more wait than are idle");
        while drops.next(0).is_some() {}
        assert!(!drops.begin_thread());
    }

    #[test]
    fn drops_for_nobody_are_not_repeated() {
        let mut drops: Drops<&str> = Drops::new(false);
        for _ in 0..3 {
            drops.add(page(FILE, 1), For::Nobody, 0);
        }
        let (id, _) = drops.next(0).unwrap();
        assert_eq!(drops.next(0), None);
        drops.add(page(FILE, 1), For::Nobody, 0);
        let (second, _) = drops.next(0).expect("the first one may be past these pages");
        assert_eq!(
            (drops.over(id, true, 0), drops.over(second, true, 0), drops.next_look()),
            (None, None, None)
        );
    }

    #[test]
    fn a_new_life_hears_nothing_of_the_last_ones_recalls() {
        let mut drops = Drops::new(false);
        recall(&mut drops, FILE, 1, 0);
        recall(&mut drops, FILE, 2, 0);
        drops.add(page(FILE, 3), For::Server(ServerId(9), 1), 0);
        let (first, _) = drops.next(0).unwrap();
        assert_eq!(drops.add_life(HERE, 5, &[]), Some(Effect::DroppedAll(HERE, 5)));
        assert_eq!(drops.over(first, true, 0), None);
        recall(&mut drops, FILE, 1, 0);
        let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
        let told: Vec<_> = ids.into_iter().filter_map(|id| drops.over(id, true, 0)).collect();
        assert_eq!(told, [Effect::Done(ServerId(9), 1), Effect::Done(HERE, 1)]);
    }

    // SEMANTICS 119.1
    #[test]
    fn a_new_life_hears_when_all_files_of_before_are_dropped_and_no_life_before_it_does() {
        let mut drops: Drops<&str> = Drops::new(false);
        let files = [FILE, InodeId(8)];
        assert_eq!(drops.add_life(HERE, 5, &files), None);
        let (first, dropped) = drops.next(0).unwrap();
        assert_eq!(dropped, Wanted { inode: FILE, parts: vec![WHOLE] });
        assert_eq!(drops.over(first, true, 0), None, "there is another one");
        assert_eq!(drops.add_life(HERE, 6, &files), None);
        let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
        let told: Vec<_> = ids.into_iter().filter_map(|id| drops.over(id, true, 0)).collect();
        assert_eq!(told, [Effect::DroppedAll(HERE, 6)]);
        // What the kernel has not dropped is there.
        assert_eq!(drops.add_life(HERE, 7, &files[..1]), None);
        let (id, _) = drops.next(0).unwrap();
        assert_eq!(drops.over(id, false, 0), None);
        assert_eq!(drops.add_life(HERE, 8, &files[..1]), None);
        let (id, _) = drops.next(0).unwrap();
        assert_eq!(drops.over(id, true, 0), Some(Effect::DroppedAll(HERE, 8)));
        assert!(drops.jobs.is_empty() && drops.lives.is_empty());
    }

    // SEMANTICS 119.1
    #[test]
    fn what_a_new_life_recalls_is_done_before_all_files_of_before_are_dropped_however_many() {
        let mut drops: Drops<&str> = Drops::new(false);
        let files: Vec<InodeId> = (0..=DROPS_MAX as u64).map(InodeId).collect();
        assert_eq!(drops.add_life(HERE, 5, &files), None);
        recall(&mut drops, FILE, 1, 0);
        let (id, dropped) = drops.next(0).unwrap();
        assert_eq!(dropped, page(FILE, 1));
        assert_eq!(drops.over(id, true, 0), Some(Effect::Done(HERE, 1)));
        // The files of a life that is over are not dropped twice.
        assert_eq!(drops.add_life(HERE, 6, &files), None);
        let (mut count, mut told) = (0, Vec::new());
        while let Some((id, _)) = drops.next(0) {
            count += 1;
            told.extend(drops.over(id, true, 0));
        }
        assert_eq!((count, told), (files.len(), vec![Effect::DroppedAll(HERE, 6)]));
        assert!(drops.jobs.is_empty() && drops.owed.is_empty());
    }

    #[test]
    fn too_many_drops_are_refused_and_hold_nobody_up() {
        let mut drops = Drops::new(false);
        for number in 0..DROPS_MAX as u64 {
            drops.add(page(FILE, number), For::Server(HERE, number), 0);
        }
        assert_eq!(drops.add(page(FILE, 1), For::Waiting("late"), 0), Some(Effect::Go("late")));
        assert_eq!(drops.add(page(FILE, 1), For::Server(HERE, u64::MAX), 0), None);
        assert_eq!(drops.jobs.len(), DROPS_MAX);
    }
}
