//! Which pages are to be dropped, by how many threads, and who hears what of it, and when.
//!
//! The kernel waits for locked pages, and a drop writes back what programs stored, by requests to this very mount. So
//! threads of their own drop ([`crate::droppers`]), and this decides: nothing here waits, or knows what time it is. A drop that cannot go on
//! must not hold up others, so that there are more threads when all are stuck, and no file gets all of them.
//!
//! Two machines may write one page at once. The kernel of each has it locked until its write is answered, and the server answers
//! each when the other has dropped the page. So a recall that is not done in a while, when requests are under way that may hold some of its pages,
//! has the others dropped beside them, and is then told to be *blocked*: nobody waits for it any more.

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
/// Drops of what requests do not hold of a late one, and looks at those that are not over: a mount that writes all the time to pages that
/// another one wants, or has no thread for them, tells so in the end.
const RESTS_MAX: usize = 4;
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
    rest: Rest,
}

/// The part of a late recall that no request holds.
#[derive(Default)]
struct Rest {
    /// It was dropped.
    dropped: Vec<ByteRange>,
    /// What requests held when it was last begun to be dropped.
    held: Vec<ByteRange>,
    /// Drops of it so far, and those that are not over.
    begun: usize,
    running: usize,
    /// How often they were looked at and had not ended.
    looks: usize,
}

/// What is to be done about a recall that takes long.
enum Late {
    /// Nothing holds it: it waits for what it writes back itself, or for a thread.
    Wait,
    /// These pages are held by nothing.
    DropRest(Vec<ByteRange>),
    /// All others are dropped.
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
    /// Drops that look after look has added, and nobody was woken for.
    added: usize,
}

/// Drops of one file that are under way.
#[derive(Clone, Copy, Default)]
struct Running {
    count: usize,
    late: usize,
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
        self.push(drop, whom, look_at);
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
            self.push(whole, For::Life(server, life), NEVER);
        }
        None
    }

    fn push(&mut self, drop: Wanted, whom: For<T>, look_at: u64) {
        self.last += 1;
        let for_life = matches!(whom, For::Life(..));
        let queue = if for_life { &mut self.for_lives } else { &mut self.waiting };
        queue.push_back(self.last);
        *self.owed.entry(drop.inode).or_default() += 1;
        let (is_told, runs, is_late, rest) = (false, false, false, Rest::default());
        self.jobs.insert(self.last, Job { drop, whom: Some(whom), is_told, look_at, runs, is_late, rest });
    }

    /// Whether the kernel may have pages of this file that it is to drop.
    pub(crate) fn owes(&self, inode: InodeId) -> bool {
        self.owed.contains_key(&inode)
    }

    /// Whether one more thread is to begin; then it is counted.
    pub(crate) fn begin_thread(&mut self) -> bool {
        let needed = self.idle < self.waiting.len() + self.for_lives.len() && self.threads < THREADS_MAX;
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
        let may_run = |id: &u64| {
            let inode = self.jobs.get(id).map(|job| job.drop.inode);
            inode.is_some_and(|inode| {
                self.running.get(&inode).is_none_or(|running| running.count < DROPS_PER_FILE_MAX)
            })
        };
        let next_of = |queue: &VecDeque<u64>| queue.iter().position(may_run);
        let id = match next_of(&self.waiting) {
            Some(at) => self.waiting.remove(at)?,
            None => self.for_lives.remove(next_of(&self.for_lives)?)?,
        };
        let job = self.jobs.get_mut(&id)?;
        job.runs = true;
        if job.look_at == NEVER {
            // Nobody waits for it any more, but others of its file for its thread.
            job.look_at = now + LATE_MILLIS;
        }
        self.running.entry(job.drop.inode).or_default().count += 1;
        Some((id, job.drop.clone()))
    }

    /// A thread has dropped, or the kernel has refused: then nobody hears that it was done.
    pub(crate) fn over(&mut self, id: u64, dropped: bool) -> Option<Effect<T>> {
        let job = self.remove(id)?;
        if let Some(running) = self.running.get_mut(&job.drop.inode) {
            running.count -= usize::from(!job.is_late);
            running.late -= usize::from(job.is_late);
            if running.count + running.late == 0 {
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
                    whole.rest.running -= 1;
                    whole.rest.dropped.extend(job.drop.parts.iter().filter(|_| dropped));
                    if whole.rest.running == 0 && !whole.is_told {
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
            if let Some(running) = self.running.get_mut(&job.drop.inode).filter(|_| job.runs && !job.is_late)
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
                    match job.is_held_up(&held) {
                        Late::Wait => {}
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
        rests.into_iter().for_each(|(whole, rest)| self.push(rest, For::Rest(whole), NEVER));
        effects
    }

    /// How many drops were added by looks since this was asked last.
    pub(crate) fn take_added(&mut self) -> usize {
        std::mem::take(&mut self.added)
    }
}

impl<T> Job<T> {
    /// Whether requests hold what is left of a recall. What nothing holds goes first: programs may read it.
    fn is_held_up(&mut self, held: impl Fn(&Wanted) -> Vec<ByteRange>) -> Late {
        if self.is_told {
            return Late::Wait;
        }
        let held = held(&self.drop);
        if held.is_empty() {
            return Late::Wait;
        }
        let gone = || held.iter().chain(&self.rest.dropped).copied();
        let left: Vec<ByteRange> = self.drop.parts.iter().flat_map(|part| without(*part, gone())).collect();
        if left.is_empty() {
            return Late::Blocked;
        }
        // A drop of the rest may be held up itself, by a request that has come since.
        let is_new = |part: &ByteRange| !without(*part, self.rest.held.iter().copied()).is_empty();
        if self.rest.running > 0 && !held.iter().any(is_new) {
            // It may never begin: all threads of the file may be stuck.
            self.rest.looks += 1;
            return if self.rest.looks > RESTS_MAX { Late::Blocked } else { Late::Wait };
        }
        if self.rest.begun == RESTS_MAX {
            return Late::Blocked;
        }
        self.rest.held = held;
        self.rest.begun += 1;
        self.rest.running += 1;
        Late::DropRest(left)
    }

    /// There is nothing to say of it before it is over, or begins.
    fn is_settled(&self) -> bool {
        let is_awaited = matches!(self.whom, Some(For::Server(..))) && !self.is_told;
        !is_awaited && (self.is_late || !self.runs)
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
        assert_eq!(drops.over(id, true), Some(Effect::Done(HERE, 1)));
        recall(&mut drops, FILE, 1, 0);
        let (id, _) = drops.next(0).expect("it is told again, so it was not heard that it was done");
        assert_eq!(drops.over(id, false), None, "the kernel has not dropped them");
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
        assert_eq!(drops.over(id, true), Some(Effect::Done(HERE, 1)));
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
        drops.over(ids[0], true);
        assert!(drops.owes(FILE), "the other one is under way");
        drops.over(ids[1], true);
        assert!(!drops.owes(FILE) && drops.owed.is_empty());
    }

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
        assert_eq!(drops.over(rest, true), None);
        assert!(
            drops.is_too_late(Some(3 * LATE_MILLIS), 2 * LATE_MILLIS + 1),
            "there is something to say at once"
        );
        // Another page is held by now: the one of before may be read again.
        assert_eq!(drops.look(2 * LATE_MILLIS + 1, held(7)), []);
        let (rest, Wanted { parts, .. }) = drops.next(3 * LATE_MILLIS).unwrap();
        assert_eq!(parts, [range(4, 5)]);
        assert_eq!(drops.over(rest, false), None, "the kernel would not");
        assert_eq!(drops.look(3 * LATE_MILLIS, held(4)), [Effect::Blocked(HERE, 1)]);
        assert_eq!(drops.over(whole, true), Some(Effect::Done(HERE, 1)));
        assert!(drops.jobs.is_empty() && drops.running.is_empty());
    }

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
        let now = 50 * LATE_MILLIS;
        assert_eq!(drops.look(now, |_| page(FILE, RESTS_MAX as u64).parts), [], "nothing has come since");
        assert_eq!(drops.look(now + LATE_MILLIS, |_| page(FILE, 90).parts), [Effect::Blocked(HERE, 1)]);
    }

    // SEMANTICS 117.3
    #[test]
    fn recalls_of_which_no_part_can_begin_to_be_dropped_are_blocked_in_time() {
        let mut drops: Drops<&str> = Drops::new(false);
        let count = LATE_DROPS_PER_FILE_MAX as u64 + DROPS_PER_FILE_MAX as u64 + 4;
        let two = |at: u64| vec![ByteRange { start: 2 * at * 4096, end: (2 * at + 2) * 4096 }];
        for number in 0..count {
            drops.add(Wanted { inode: FILE, parts: two(number) }, For::Server(HERE, number), 0);
        }
        // A request holds the first page of each, and no drop ends.
        let held = |drop: &Wanted| vec![ByteRange { end: drop.parts[0].start + 4096, ..drop.parts[0] }];
        let mut told = Vec::new();
        for turn in 0..=RESTS_MAX as u64 + 2 {
            while drops.next(turn * LATE_MILLIS).is_some() {}
            told.extend(drops.look(turn * LATE_MILLIS, held));
        }
        assert_eq!(told.len() as u64, count, "each of them, and once");
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
        assert_eq!(drops.over(id, true), Some(Effect::Done(HERE, 1)), "and when it is done");
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
        assert_eq!(drops.over(first, true), Some(Effect::Go("first")));
        assert_eq!(drops.look(5 + WAITING_MILLIS_MAX - 1, all), []);
        assert_eq!(drops.look(5 + WAITING_MILLIS_MAX, none), [Effect::Go("second")]);
        assert_eq!((drops.look(9_999, all), drops.next_look()), (vec![], None));
        assert_eq!(drops.over(second, true), None);
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
        drops.over(stuck[0], true);
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
        assert_eq!(ids.len(), LATE_DROPS_PER_FILE_MAX + DROPS_PER_FILE_MAX);
        ids.drain(..).for_each(|id| _ = drops.over(id, true));
        assert!(drops.running.is_empty());
        assert_eq!(std::iter::from_fn(|| drops.next(0)).count(), DROPS_PER_FILE_MAX);
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
        let begun = std::iter::from_fn(|| drops.begin_thread().then(|| drops.next(0).unwrap())).count();
        assert_eq!(begun, THREADS_MAX);
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
        assert_eq!((drops.over(id, true), drops.over(second, true), drops.next_look()), (None, None, None));
    }

    #[test]
    fn a_new_life_hears_nothing_of_the_last_ones_recalls() {
        let mut drops = Drops::new(false);
        recall(&mut drops, FILE, 1, 0);
        recall(&mut drops, FILE, 2, 0);
        drops.add(page(FILE, 3), For::Server(ServerId(9), 1), 0);
        let (first, _) = drops.next(0).unwrap();
        assert_eq!(drops.add_life(HERE, 5, &[]), Some(Effect::DroppedAll(HERE, 5)));
        assert_eq!(drops.over(first, true), None);
        recall(&mut drops, FILE, 1, 0);
        let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
        let told: Vec<_> = ids.into_iter().filter_map(|id| drops.over(id, true)).collect();
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
        assert_eq!(drops.over(first, true), None, "there is another one");
        assert_eq!(drops.add_life(HERE, 6, &files), None);
        let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
        let told: Vec<_> = ids.into_iter().filter_map(|id| drops.over(id, true)).collect();
        assert_eq!(told, [Effect::DroppedAll(HERE, 6)]);
        // What the kernel has not dropped is there.
        assert_eq!(drops.add_life(HERE, 7, &files[..1]), None);
        let (id, _) = drops.next(0).unwrap();
        assert_eq!(drops.over(id, false), None);
        assert_eq!(drops.add_life(HERE, 8, &files[..1]), None);
        let (id, _) = drops.next(0).unwrap();
        assert_eq!(drops.over(id, true), Some(Effect::DroppedAll(HERE, 8)));
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
        assert_eq!(drops.over(id, true), Some(Effect::Done(HERE, 1)));
        // The files of a life that is over are not dropped twice.
        assert_eq!(drops.add_life(HERE, 6, &files), None);
        let ids: Vec<u64> = std::iter::from_fn(|| drops.next(0)).map(|(id, _)| id).collect();
        assert_eq!(ids.len(), files.len());
        let told: Vec<_> = ids.into_iter().filter_map(|id| drops.over(id, true)).collect();
        assert_eq!(told, [Effect::DroppedAll(HERE, 6)]);
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
