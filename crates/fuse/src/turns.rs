//! Decides which requests are handled at once and which are queued.
//!
//! A worker sees what a request is only after it has read it. When as many requests as allowed are blocked, those that
//! others depend on must still be answered. So a less urgent request is queued, and the next free worker handles it.

use std::collections::VecDeque;
use std::sync::Arc;

use ramlace_sync::{Mutex, MutexGuard};

use crate::options::{Urgency, Workers};
use crate::reply::Channel;

/// Requests that wait for their turn, in bytes: with more of them a worker handles what it has read at once.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// A request that was read and not handled.
pub struct Aside {
    /// By what it is answered.
    pub channel: Arc<Channel>,
    pub bytes: Box<[u8]>,
    pub urgency: Urgency,
    /// What the file system keeps of it meanwhile.
    pub kept: Option<Box<dyn Send>>,
}

/// Which requests are handled, and which wait.
///
/// Lock order: `state`, then what is locked where a request is entered ([`crate::inflight`]), and what the file system locks
/// when one waits, or waits no more.
pub struct Turns {
    limits: Workers,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    handled: [usize; 3],
    waiting: VecDeque<Aside>,
    waiting_bytes: usize,
    /// The mount is gone: no answer is taken any more.
    over: bool,
}

impl State {
    /// Drops requests whose answers are not wanted any more. What programs have stored is written all the same.
    fn drop_unwanted(&mut self) {
        if self.over {
            self.waiting.retain(|aside| aside.urgency == Urgency::WritesBack);
            self.waiting_bytes = self.waiting.iter().map(|aside| aside.bytes.len()).sum();
        }
    }
}

impl Turns {
    pub fn new(limits: Workers) -> Turns {
        Turns { limits, state: Mutex::default() }
    }

    /// Threads at all.
    pub fn threads_max(limits: Workers) -> usize {
        limits.threads_max + Urgency::WritesBack as usize * limits.reserved_threads
    }

    /// A request was read: whether it is handled now, as it then is. Else it is put aside, as `aside` makes it.
    pub fn begin(&self, urgency: Urgency, bytes: usize, aside: impl FnOnce() -> Aside) -> bool {
        let mut state = self.lock();
        if self.has_room(&state, urgency) || state.waiting_bytes + bytes > WAITING_BYTES_MAX {
            state.handled[urgency as usize] += 1;
            return true;
        }
        state.waiting_bytes += bytes;
        state.waiting.push_back(aside());
        false
    }

    /// A request was handled: what was put aside, and is handled now.
    pub fn end(&self, urgency: Urgency) -> Option<Aside> {
        let mut state = self.lock();
        state.handled[urgency as usize] -= 1;
        state.drop_unwanted();
        let at = state.waiting.iter().position(|aside| self.has_room(&state, aside.urgency))?;
        let aside = state.waiting.remove(at)?;
        state.waiting_bytes -= aside.bytes.len();
        state.handled[aside.urgency as usize] += 1;
        Some(aside)
    }

    /// The kernel has let go of the mount.
    pub fn are_over(&self) {
        let mut state = self.lock();
        state.over = true;
        state.drop_unwanted();
    }

    /// Whether so few are handled that there are threads left, for its like and for each that is more urgent: these may
    /// have come first, and have taken the room of what is less urgent.
    fn has_room(&self, state: &State, urgency: Urgency) -> bool {
        let has_room = |level: usize| {
            let handled: usize = state.handled[..=level].iter().sum();
            handled < self.limits.threads_max + level * self.limits.reserved_threads
        };
        // As many of one kind leave threads for each other one.
        state.handled[urgency as usize] < self.limits.threads_max
            && (urgency as usize..state.handled.len()).all(has_room)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    fn turns(threads_max: usize, reserved_threads: usize) -> Turns {
        Turns::new(Workers { idle_threads_min: 1, threads_max, reserved_threads })
    }

    /// Whether a request of so many bytes is handled at once.
    fn begin(turns: &Turns, urgency: Urgency, bytes: usize) -> bool {
        turns.begin(urgency, bytes, || {
            let (socket, _) = crate::guard::pair().unwrap();
            let device = Arc::new(Device::new(socket));
            let channel = Channel { device, inflight: Arc::default(), delays: None };
            Aside { channel: Arc::new(channel), bytes: vec![0; bytes].into(), urgency, kept: None }
        })
    }

    // SEMANTICS 117.2
    #[test]
    fn the_usual_leaves_threads_to_what_others_wait_for() {
        let turns = turns(4, 2);
        let count = |urgency| (0..20).take_while(|_| begin(&turns, urgency, 100)).count();
        assert_eq!(count(Urgency::Usual), 4);
        assert_eq!(count(Urgency::Reads), 2);
        assert_eq!(count(Urgency::WritesBack), 2);
        assert_eq!(Turns::threads_max(turns.limits), 8);
    }

    // SEMANTICS 117.2
    #[test]
    fn what_others_wait_for_has_threads_left_whatever_came_first() {
        let turns = turns(4, 2);
        let count = |urgency| (0..20).take_while(|_| begin(&turns, urgency, 100)).count();
        assert_eq!(count(Urgency::Reads), 4);
        assert_eq!(count(Urgency::Usual), 2, "one more would take the last threads");
        assert_eq!(count(Urgency::WritesBack), 2);
        let next = |ended| turns.end(ended).map(|aside| aside.urgency);
        assert_eq!(next(Urgency::WritesBack), Some(Urgency::WritesBack), "its room is for its like alone");
        assert_eq!(next(Urgency::Reads), Some(Urgency::Reads));
        assert_eq!(next(Urgency::Reads), Some(Urgency::Usual));
        assert_eq!(next(Urgency::Usual), None);
    }

    #[test]
    fn what_was_put_aside_comes_when_somebody_is_free_whose_place_it_may_take() {
        let turns = turns(1, 1);
        assert!(begin(&turns, Urgency::Usual, 1) && begin(&turns, Urgency::Reads, 1));
        assert!(!begin(&turns, Urgency::Usual, 1) && !begin(&turns, Urgency::Reads, 1));
        assert!(begin(&turns, Urgency::WritesBack, 1));
        assert_eq!(
            turns.end(Urgency::WritesBack).map(|aside| aside.urgency),
            None,
            "it is kept for its like"
        );
        assert_eq!(turns.end(Urgency::Reads).map(|aside| aside.urgency), Some(Urgency::Reads));
        assert_eq!(turns.end(Urgency::Usual).map(|aside| aside.urgency), Some(Urgency::Usual));
        assert_eq!(turns.end(Urgency::Usual).map(|aside| aside.urgency), None);
        assert_eq!(turns.lock().waiting_bytes, 0);
    }

    #[test]
    fn what_waits_when_the_mount_is_gone_is_not_done_any_more() {
        let turns = turns(0, 0);
        for urgency in [Urgency::Usual, Urgency::Reads, Urgency::WritesBack] {
            assert!(!begin(&turns, urgency, 100));
        }
        turns.are_over();
        assert_eq!(turns.lock().waiting_bytes, 100, "what programs have stored is");
        assert!(!begin(&turns, Urgency::Usual, 1));
        turns.lock().handled[0] = 1;
        assert!(turns.end(Urgency::Usual).is_none());
        assert_eq!(turns.lock().waiting.len(), 1);
    }

    #[test]
    fn more_than_may_wait_is_handled_at_once() {
        let turns = turns(0, 0);
        assert!(!begin(&turns, Urgency::Usual, WAITING_BYTES_MAX));
        assert!(begin(&turns, Urgency::Usual, 1));
    }
}
