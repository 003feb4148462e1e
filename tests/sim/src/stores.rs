//! Stores into mapped files of which only their times tell, in virtual time: when a mount polls them ([`ramlace_mount::mtime_poll`]), over programs that
//! store when they like, a kernel that takes a while to forget files, and homes that take a while to answer.
//!
//! What holds: a home that answers knows of a store 5 s after it at the latest. A [`StoreBug`] planted in what the mount's thread must do for the
//! rule must be found.

use ramlace_mount::mtime_poll::{MtimePoll, PAUSE};

use crate::agenda::Agenda;
use crate::dice::Dice;
use crate::tally::tally;

const FILES: usize = 6;
const RUN_MILLIS: u64 = 60_000;
/// SEMANTICS 93.2.
const REPORTED_WITHIN_MILLIS: u64 = 5_000;
/// The longest that the kernel takes to forget one file, and a home to answer.
const FORGETS_MILLIS_MAX: u64 = 20;
const ANSWERS_MILLIS_MAX: u64 = 50;

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreBug {
    /// None.
    None,
    /// Pauses are counted, and what the rounds between them take is not.
    CountsPauses,
    /// A poll is of one file, each in its turn.
    PollsOne,
    /// A poll that is due is left out where the round took long.
    SkipsWhenBusy,
    /// The thread rests for longer.
    RestsLonger,
}

impl StoreBug {
    /// All that can be planted.
    pub const ALL: [StoreBug; 4] =
        [StoreBug::CountsPauses, StoreBug::PollsOne, StoreBug::SkipsWhenBusy, StoreBug::RestsLonger];
}

tally! {
    /// How much has happened.
    StoreTally {
        /// Stores of programs.
        stored,
        /// Times that a home was told of some.
        reported,
        /// Rounds of the thread.
        rounds,
    }
}

enum Event {
    Stores,
    Round {
        number: u32,
    },
    /// A home knows of a file's stores up to this moment.
    Reported {
        file: usize,
        up_to: u64,
    },
}

/// Runs a seed to its end; what does not hold.
///
/// # Errors
/// The first store that is reported too late, and when.
pub fn run_stores(seed: u64, bug: StoreBug) -> Result<StoreTally, String> {
    let (mut dice, mut agenda, mut poll) = (Dice(seed), Agenda::<Event>::default(), MtimePoll::default());
    let mut tally = StoreTally::default();
    // The stores of each file that its home does not know of.
    let mut unreported: [Vec<u64>; FILES] = Default::default();
    agenda.at(dice.roll(3_000), Event::Stores);
    agenda.at(0, Event::Round { number: 1 });
    while let Some(event) = agenda.next() {
        let now = agenda.now;
        if now > RUN_MILLIS {
            break;
        }
        match event {
            Event::Stores => {
                tally.stored += 1;
                unreported[dice.roll(FILES as u64) as usize].push(now);
                agenda.after(1 + dice.roll(2_000), Event::Stores);
            }
            Event::Round { number } => {
                tally.rounds += 1;
                // Whatever nobody has open, the kernel is asked to forget.
                let mut ends = now + (0..FILES).map(|_| dice.roll(FORGETS_MILLIS_MAX)).sum::<u64>();
                let is_due = match bug {
                    StoreBug::CountsPauses => number.is_multiple_of(10),
                    StoreBug::SkipsWhenBusy => poll.is_due(agenda.instant_of(ends)) && ends < now + 60,
                    _ => poll.is_due(agenda.instant_of(ends)),
                };
                let polled = (0..FILES).filter(|file| match bug {
                    StoreBug::PollsOne => *file == number as usize % FILES,
                    _ => true,
                });
                for file in polled.filter(|_| is_due) {
                    // Each is polled when the one before it has been reported.
                    let up_to = ends;
                    ends += if unreported[file].is_empty() { 0 } else { 1 + dice.roll(ANSWERS_MILLIS_MAX) };
                    agenda.at(ends, Event::Reported { file, up_to });
                }
                let rest = if bug == StoreBug::RestsLonger { 5 * PAUSE } else { PAUSE };
                agenda.at(ends + rest.as_millis() as u64, Event::Round { number: number + 1 });
            }
            Event::Reported { file, up_to } => {
                let before = unreported[file].len();
                unreported[file].retain(|since| *since > up_to);
                tally.reported += (before - unreported[file].len()) as u64;
            }
        }
        if let Some(late) = unreported.iter().flatten().find(|since| now - **since > REPORTED_WITHIN_MILLIS) {
            return Err(format!("at {now} ms: nobody has reported a store of {late}"));
        }
    }
    Ok(tally)
}
