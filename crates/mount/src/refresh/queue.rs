//! Decides which refreshes are done now, and by how many threads.
//!
//! A refresh waits for pages, and with them for a server that may not answer for seconds. It must not delay those of other
//! files: there is a thread for each, up to a limit, and no file gets all of them.

use std::collections::{HashMap, VecDeque};

use ramlace_base::InodeId;

/// The limit of threads.
pub(super) const THREADS_MAX: usize = 64;
/// Of one file at the same time.
const OF_FILE_MAX: usize = 4;
/// Threads that stay when there is nothing to do. At least one does, so that what is added always finds one.
const IDLE_THREADS_MAX: usize = 2;
/// The limit of refreshes that wait for their turn, but for those that must be done.
const WAITING_MAX: usize = 1024;

/// What waits for its turn, and what is being done.
pub(super) struct Queue<W> {
    waiting: VecDeque<(InodeId, W)>,
    /// The number that is being done of each file.
    running: HashMap<InodeId, usize>,
    threads: usize,
    idle: usize,
}

impl<W> Queue<W> {
    pub(super) fn new() -> Queue<W> {
        Queue { waiting: VecDeque::new(), running: HashMap::new(), threads: 0, idle: 0 }
    }

    /// The thread that is started with the queue.
    pub(super) fn begin_first_thread(&mut self) {
        self.threads += 1;
    }

    /// Adds one, unless too many wait; one that `must` be done is added all the same.
    pub(super) fn add(&mut self, inode: InodeId, what: W, must: bool) -> Result<(), W> {
        if self.waiting.len() >= WAITING_MAX && !must {
            return Err(what);
        }
        self.waiting.push_back((inode, what));
        Ok(())
    }

    /// Whether one of this file that waits does this as well.
    pub(super) fn any_waits(&self, inode: InodeId, does: impl Fn(&W) -> bool) -> bool {
        self.waiting.iter().any(|(of, what)| *of == inode && does(what))
    }

    /// Whether one more thread is needed; it counts from here on.
    pub(super) fn begin_thread(&mut self) -> bool {
        let may_begin = self.waiting.iter().filter(|(inode, _)| self.has_room(*inode)).count();
        let is_needed = may_begin > self.idle && self.threads < THREADS_MAX;
        self.threads += usize::from(is_needed);
        is_needed
    }

    /// A thread has ended, or could not be started.
    pub(super) fn end_thread(&mut self) {
        self.threads -= 1;
    }

    /// A thread has nothing to do: whether it waits. Else enough others do.
    pub(super) fn begin_idling(&mut self) -> bool {
        let waits = self.idle < IDLE_THREADS_MAX;
        self.idle += usize::from(waits);
        waits
    }

    pub(super) fn end_idling(&mut self) {
        self.idle -= 1;
    }

    /// The next one to be done.
    pub(super) fn next(&mut self) -> Option<(InodeId, W)> {
        let at = self.waiting.iter().position(|(inode, _)| self.has_room(*inode))?;
        let (inode, what) = self.waiting.remove(at)?;
        *self.running.entry(inode).or_default() += 1;
        Some((inode, what))
    }

    /// One of this file is done.
    pub(super) fn over(&mut self, inode: InodeId) {
        if let Some(running) = self.running.get_mut(&inode) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&inode);
            }
        }
    }

    fn has_room(&self, inode: InodeId) -> bool {
        self.running.get(&inode).is_none_or(|running| *running < OF_FILE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROZEN: InodeId = InodeId(1);
    const OTHER: InodeId = InodeId(2);

    /// Adds one for which a thread is started, if it may be; it is begun.
    fn begin(queue: &mut Queue<u32>, inode: InodeId, number: u32) -> bool {
        queue.add(inode, number, false).unwrap();
        queue.begin_thread() && queue.next() == Some((inode, number))
    }

    // SEMANTICS 43.7
    #[test]
    fn refreshes_of_a_file_whose_server_is_silent_hold_up_no_other_file() {
        let mut queue = Queue::new();
        let begun = (0..20).filter(|number| begin(&mut queue, FROZEN, *number)).count();
        assert_eq!(begun, OF_FILE_MAX);
        assert!(begin(&mut queue, OTHER, 100), "it does not wait behind them");
        queue.over(OTHER);
        assert_eq!(queue.next(), None);
        queue.over(FROZEN);
        assert_eq!(queue.next(), Some((FROZEN, OF_FILE_MAX as u32)), "in their order");
        let others = (10..).take(THREADS_MAX).filter(|inode| begin(&mut queue, InodeId(*inode), 0));
        assert_eq!(others.count(), THREADS_MAX - OF_FILE_MAX - 1);
    }

    #[test]
    fn threads_that_wait_are_used_and_are_few() {
        let mut queue = Queue::new();
        assert!(begin(&mut queue, OTHER, 1));
        queue.over(OTHER);
        assert!(queue.next().is_none() && queue.begin_idling());
        queue.add(OTHER, 2, false).unwrap();
        assert!(!queue.begin_thread(), "one waits for it");
        queue.add(OTHER, 3, false).unwrap();
        assert!(queue.begin_thread(), "this one needs another");
        queue.end_idling();
        assert_eq!((queue.next(), queue.next()), (Some((OTHER, 2)), Some((OTHER, 3))));
        assert_eq!((0..9).filter(|_| queue.begin_idling()).count(), IDLE_THREADS_MAX);
    }

    // SEMANTICS 43.7
    #[test]
    fn what_gives_a_lock_away_or_takes_one_is_never_refused() {
        let mut queue = Queue::new();
        (0..WAITING_MAX as u32).for_each(|number| queue.add(FROZEN, number, false).unwrap());
        assert_eq!(queue.add(OTHER, 7, false), Err(7));
        assert_eq!(queue.add(OTHER, 8, true), Ok(()));
        assert!(queue.any_waits(OTHER, |what| *what == 8) && !queue.any_waits(FROZEN, |what| *what == 5_000));
    }
}
