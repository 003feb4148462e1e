//! Which requests are unanswered, and which of them were interrupted.
//!
//! An INTERRUPT may be read by one worker before another has entered the request that it names. The protocol's
//! answer to that, EAGAIN, works only through the descriptor that the request was read from, which is not known
//! then (elsewhere the kernel drops it, and a killed program would wait for ever). So such an interrupt is
//! remembered here until its request comes.

use std::collections::VecDeque;

use ramlace_sync::{Mutex, MutexGuard};

/// Tables, each with its own lock, so that workers seldom meet.
const SHARDS: usize = 16;
/// Interrupts remembered in one table. Most are of requests just answered, which come never again.
const EARLY_INTERRUPTS_MAX: usize = 64;

/// The unanswered requests of one connection.
#[derive(Debug, Default)]
pub struct InFlight {
    shards: [Shard; SHARDS],
}

/// Aligned so that two locks never share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    live: Vec<Live>,
    early: VecDeque<u64>,
}

#[derive(Debug)]
struct Live {
    unique: u64,
    interrupted: bool,
}

impl InFlight {
    /// The request was read.
    pub fn begin(&self, unique: u64) {
        let mut table = self.table(unique);
        let early = table.early.iter().position(|interrupted| *interrupted == unique);
        if let Some(index) = early {
            table.early.remove(index);
        }
        table.live.push(Live { unique, interrupted: early.is_some() });
    }

    /// The request was answered.
    pub fn end(&self, unique: u64) {
        let mut table = self.table(unique);
        if let Some(index) = table.live.iter().position(|live| live.unique == unique) {
            table.live.swap_remove(index);
        }
    }

    /// The request's program has a signal; true when the request is known.
    pub fn interrupt(&self, unique: u64) -> bool {
        let mut table = self.table(unique);
        if let Some(live) = table.live.iter_mut().find(|live| live.unique == unique) {
            live.interrupted = true;
            return true;
        }
        if table.early.len() == EARLY_INTERRUPTS_MAX {
            table.early.pop_front();
        }
        table.early.push_back(unique);
        false
    }

    /// The request is unanswered and its program has a signal.
    pub fn interrupted(&self, unique: u64) -> bool {
        self.table(unique).live.iter().any(|live| live.unique == unique && live.interrupted)
    }

    /// The request was read and is not answered.
    #[cfg(test)]
    pub fn is_known(&self, unique: u64) -> bool {
        self.table(unique).live.iter().any(|live| live.unique == unique)
    }

    fn table(&self, unique: u64) -> MutexGuard<'_, Table> {
        // The lowest bit distinguishes interrupts from requests, so requests are even.
        let shard = &self.shards[(unique >> 1) as usize % SHARDS];
        shard.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_reaches_its_request_in_either_order() {
        let inflight = InFlight::default();
        inflight.begin(2);
        assert!(!inflight.interrupted(2));
        assert!(inflight.interrupt(2));
        assert!(inflight.interrupted(2));
        inflight.end(2);
        assert!(!inflight.interrupted(2));

        assert!(!inflight.interrupt(4));
        inflight.begin(4);
        assert!(inflight.interrupted(4), "it came before its request");
        inflight.end(4);
        inflight.begin(4);
        assert!(!inflight.interrupted(4), "it counts once");
    }

    #[test]
    fn interrupts_of_answered_requests_take_no_more_than_their_room() {
        let inflight = InFlight::default();
        let step = 2 * SHARDS as u64;
        for index in 0..10 * EARLY_INTERRUPTS_MAX as u64 {
            assert!(!inflight.interrupt(index * step));
        }
        let last = (10 * EARLY_INTERRUPTS_MAX as u64 - 1) * step;
        assert_eq!(inflight.table(0).early.len(), EARLY_INTERRUPTS_MAX);
        inflight.begin(last);
        assert!(inflight.interrupted(last));
    }
}
