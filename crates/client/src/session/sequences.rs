//! The sequence numbers of a session's mutations, and which of them still wait for their answer.
//!
//! A slot keeps its answers until it learns that the client has them: every header says which is the oldest
//! mutation of this session that still waits *in that slot*. Counting by slot keeps a server that does not
//! answer from holding up mutations elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result, Sequence, Slot, limits};
use ramlace_sync::{Condvar, Mutex, MutexGuard};

/// What a mutation is for: how many numbers a slot may have given since the oldest that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFor {
    /// A program's call, which may wait for other clients.
    Program,
    /// Bytes of an inline file that a kernel writes back: nobody else is waited for, so that other clients' calls end.
    InlinePages,
    /// Bytes of a lane that a kernel writes back.
    LanePages,
}

impl NumberFor {
    fn most(self) -> u64 {
        let most = match self {
            NumberFor::Program => limits::PROGRAM_MUTATIONS_PER_SLOT_MAX,
            NumberFor::InlinePages => limits::REPLIES_PER_SESSION_MAX,
            NumberFor::LanePages => limits::LANE_WRITES_PER_SESSION_MAX,
        };
        most as u64
    }
}

/// The mutations of one slot.
#[derive(Default)]
struct InSlot {
    /// How many there were.
    given: u64,
    /// Those that wait, in ascending order, and how many there were before each.
    waiting: Vec<(u64, u64)>,
}

impl InSlot {
    fn has_room(&self, purpose: NumberFor) -> bool {
        self.waiting.first().is_none_or(|(_, before)| self.given - before < purpose.most())
    }

    fn oldest(&self) -> Option<u64> {
        self.waiting.first().map(|(sequence, _)| *sequence)
    }
}

#[derive(Default)]
struct Waiting {
    last: u64,
    /// A slot that has been used stays.
    slots: HashMap<Slot, InSlot>,
    /// Threads that wait for numbers: a wake-up is a system call even if no thread waits.
    sleepers: usize,
}

impl Waiting {
    fn try_take(&mut self, slot: Slot, purpose: NumberFor) -> Option<u64> {
        self.slots.entry(slot).or_default().has_room(purpose).then(|| self.push(slot))
    }

    fn outstanding(&self, slot: Slot, sequence: u64) -> u32 {
        let oldest = self.slots.get(&slot).and_then(InSlot::oldest);
        // A later mutation may be sent after an older one of its slot was answered.
        sequence.saturating_sub(oldest.unwrap_or(sequence)) as u32
    }

    fn push(&mut self, slot: Slot) -> u64 {
        self.last += 1;
        let of_slot = self.slots.entry(slot).or_default();
        of_slot.waiting.push((self.last, of_slot.given));
        of_slot.given += 1;
        self.last
    }
}

/// All mutations of one session.
#[derive(Default)]
pub struct Sequences {
    waiting: Mutex<Waiting>,
    answered: Condvar,
}

/// The number of one mutation, until it is answered or abandoned.
pub struct Ticket<'a> {
    sequences: &'a Sequences,
    slot: Slot,
    sequence: u64,
}

/// The number of a mutation that has ended for its caller, but not for its slot: it counts as unanswered
/// until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The slot.
    pub slot: Slot,
    /// The number.
    pub sequence: Sequence,
}

/// Slots that keep the answers of many changes, though they have arrived: a slot learns that by its session's next change
/// there, and there was none since. With each the last of those changes.
#[derive(Default)]
pub struct Unacknowledged(Mutex<BTreeMap<Slot, Sequence>>);

impl Unacknowledged {
    /// The slot keeps many answers, up to this one.
    pub fn note(&self, slot: Slot, last: Sequence) {
        let mut slots = self.0.lock();
        let known = slots.entry(slot).or_insert(last);
        *known = last.max(*known);
    }

    /// Takes the first such slot behind another one, to acknowledge its answers.
    pub fn take(&self, after: Option<Slot>, is_such: impl Fn(Slot) -> bool) -> Option<(Slot, Sequence)> {
        let mut slots = self.0.lock();
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let slot = slots.range(behind).map(|(slot, _)| *slot).find(|slot| is_such(*slot))?;
        slots.remove_entry(&slot)
    }
}

impl Sequences {
    /// A number for a mutation in `slot`, when the slot's window has room.
    pub fn try_take(&self, slot: Slot, purpose: NumberFor) -> Option<Ticket<'_>> {
        let sequence = self.lock().try_take(slot, purpose)?;
        Some(Ticket { sequences: self, slot, sequence })
    }

    /// A number for a mutation in `slot`; waits until older ones are answered.
    pub fn take(&self, slot: Slot, purpose: NumberFor, deadline: Instant) -> Result<Ticket<'_>> {
        let mut waiting = self.lock();
        loop {
            if let Some(sequence) = waiting.try_take(slot, purpose) {
                return Ok(Ticket { sequences: self, slot, sequence });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "the oldest change in {slot} was not answered in time, and {} more were begun since; \
                         'ramlace status' shows which servers answer",
                        purpose.most()
                    ),
                ));
            }
            waiting.sleepers += 1;
            waiting = self.answered.wait_timeout(waiting, left);
            waiting.sleepers -= 1;
        }
    }

    /// The same beyond the window: for a mutation that is to make room in it.
    pub fn take_beyond(&self, slot: Slot) -> Ticket<'_> {
        let sequence = self.lock().push(slot);
        Ticket { sequences: self, slot, sequence }
    }

    /// How far back the oldest mutation lies that still waits in the same slot, counted from a kept one.
    pub fn outstanding_of(&self, kept: Kept) -> u32 {
        self.lock().outstanding(kept.slot, kept.sequence.0)
    }

    /// All mutations of the slot below this number have been answered, and no more of them will be sent.
    pub fn acknowledged_below(&self, slot: Slot) -> Sequence {
        let waiting = self.lock();
        let oldest = waiting.slots.get(&slot).and_then(InSlot::oldest);
        Sequence(oldest.unwrap_or(waiting.last + 1))
    }

    /// A mutation that was kept is over.
    pub fn release(&self, kept: Kept) {
        drop(Ticket { sequences: self, slot: kept.slot, sequence: kept.sequence.0 });
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

impl Ticket<'_> {
    /// The number.
    pub fn sequence(&self) -> Sequence {
        Sequence(self.sequence)
    }

    /// The slot to which the mutation is sent.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Keeps the number as unanswered when the caller returns.
    pub fn keep(self) -> Kept {
        let kept = Kept { slot: self.slot, sequence: self.sequence() };
        std::mem::forget(self);
        kept
    }

    /// How far back the oldest mutation lies that still waits in the same slot, counted from this one.
    pub fn outstanding(&self) -> u32 {
        self.sequences.lock().outstanding(self.slot, self.sequence)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut waiting = self.sequences.lock();
        if let Some(of_slot) = waiting.slots.get_mut(&self.slot)
            && let Ok(at) = of_slot.waiting.binary_search_by_key(&self.sequence, |(sequence, _)| *sequence)
        {
            of_slot.waiting.remove(at);
            if at == 0 && waiting.sleepers > 0 {
                self.sequences.answered.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::NumberFor::{InlinePages, LanePages, Program};
    use super::*;

    #[test]
    fn outstanding_tells_the_oldest_of_the_slot() {
        let sequences = Sequences::default();
        let first = sequences.try_take(Slot(1), Program).unwrap();
        let elsewhere = sequences.try_take(Slot(2), Program).unwrap();
        let second = sequences.try_take(Slot(1), Program).unwrap();
        assert_eq!(
            (first.sequence(), elsewhere.sequence(), second.sequence()),
            (Sequence(1), Sequence(2), Sequence(3))
        );
        assert_eq!((first.outstanding(), elsewhere.outstanding(), second.outstanding()), (0, 0, 2));
        assert_eq!(sequences.acknowledged_below(Slot(1)), Sequence(1));
        drop(first);
        assert_eq!(second.outstanding(), 0);
        assert_eq!(sequences.acknowledged_below(Slot(1)), Sequence(3));
        drop(second);
        assert_eq!(sequences.acknowledged_below(Slot(1)), Sequence(4), "the next one may be of this slot");
        assert_eq!(sequences.acknowledged_below(Slot(2)), Sequence(2));
    }

    // SEMANTICS 117.2
    #[test]
    fn a_full_window_waits_others_go_on_and_write_backs_wait_for_no_program() {
        let sequences = Sequences::default();
        let oldest = sequences.try_take(Slot(1), Program).unwrap();
        for _ in 0..2 * limits::REPLIES_PER_SESSION_MAX {
            drop(sequences.try_take(Slot(2), Program).unwrap());
        }
        for purpose in [Program, InlinePages, LanePages] {
            // What has happened elsewhere takes no room here, and programs leave some for write-backs.
            while let Some(ticket) = sequences.try_take(Slot(1), purpose) {
                drop(ticket);
            }
            assert_eq!(sequences.lock().slots[&Slot(1)].given, purpose.most());
        }
        let error = sequences.take(Slot(1), Program, Instant::now()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let late = Instant::now() + Duration::from_secs(60);
                sequences.take(Slot(1), Program, late).unwrap().outstanding()
            });
            drop(oldest);
            assert_eq!(waiter.join().unwrap(), 0);
        });
    }
}
