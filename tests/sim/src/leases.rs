//! Leases in virtual time: one server with the tables that servers have ([`ramlace_namespace::leases`], [`ramlace_server::pure`]), mounts with
//! theirs ([`ramlace_mount::believed`], [`ramlace_client::pure`]), and a network that delays, reorders and cuts. Requests of one connection come in their order, those of different ones in any.
//!
//! The pool's world ([`crate::run`]) has these tables among operations of several slots, logs and deliveries. This one stays for what that has not: sessions
//! that end, and answers that are looked at every 5 ms, so that a lease or a session that lasts a moment too long is seen.
//!
//! What holds: nobody believes what an answer that has left contradicts; an answer waits for holders for 750 ms at the most; a lease is
//! believed for 500 ms, or as long as it is renewed; a session ends 10 s after it was last heard, and not before, whether it has anything to say or
//! not. A [`LeaseBug`] planted in what a server or a holder owes the table must be found.

mod holder;
mod server;

use std::collections::BTreeMap;

use ramlace_base::{Epoch, InodeId, Slot};
use ramlace_mount::believed::Asked;
use ramlace_wire::leases::LeasesRenewed;

use crate::agenda::Agenda;
use crate::dice::Dice;
use crate::tally::tally;
use holder::Holder;
use server::Server;

/// Names and sessions of a run.
const INODES: u64 = 3;
const HOLDERS: u64 = 4;
/// How long a run lasts, in virtual time.
const RUN_MILLIS: u64 = 30_000;
/// How often the server looks at its clock.
const WAKE_MILLIS: u64 = 5;
/// There is one map.
const EPOCH: Epoch = Epoch(1);

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseBug {
    /// None.
    None,
    /// A server answers changes while somebody believes otherwise.
    AnswersAtOnce,
    /// Answers to queries do not wait, those to changes do.
    ShowsAtOnce,
    /// A server waits for holders for as long as they count, and no margin.
    WaitsTooShort,
    /// A server counts what was told as done.
    TellsOnce,
    /// A server takes a holder for the session that made the change.
    TakesHolderForChanger,
    /// A new life answers before what the last one gave is over.
    NewLifeDoesNotWait,
    /// A request for news is no sign of life.
    ListeningIsNoLife,
    /// A session ends after half of its time.
    EndsSessionsEarly,
    /// A session that says nothing stays.
    KeepsSessions,
    /// A holder counts a lease from the answer on, and what was recalled only since then.
    CountsFromTheAnswer,
    /// A holder acknowledges, and drops a moment later.
    AcknowledgesFirst,
    /// A holder takes a renewal for good whatever it has yet to hear.
    RenewsWhatIsRecalled,
    /// A holder takes the renewal of one life for the leases of another.
    RenewsOverLives,
    /// A holder believes a lease for twice its time.
    BelievesTwiceAsLong,
}

impl LeaseBug {
    /// All that can be planted.
    pub const ALL: [LeaseBug; 14] = [
        LeaseBug::AnswersAtOnce,
        LeaseBug::ShowsAtOnce,
        LeaseBug::WaitsTooShort,
        LeaseBug::TellsOnce,
        LeaseBug::TakesHolderForChanger,
        LeaseBug::NewLifeDoesNotWait,
        LeaseBug::ListeningIsNoLife,
        LeaseBug::EndsSessionsEarly,
        LeaseBug::KeepsSessions,
        LeaseBug::CountsFromTheAnswer,
        LeaseBug::AcknowledgesFirst,
        LeaseBug::RenewsWhatIsRecalled,
        LeaseBug::RenewsOverLives,
        LeaseBug::BelievesTwiceAsLong,
    ];
}

tally! {
    /// How much has happened.
    LeaseTally {
        /// Times that something was believed without a request.
        believed,
        /// The same by a renewal.
        renewed,
        /// Answers that waited for a holder.
        waited,
        /// Those that waited until its time was over.
        ran_out,
        /// Recalls that were told.
        recalled,
        /// Connections that were cut.
        cut,
        /// Sessions that have ended for want of a sign of life.
        expired,
        /// Servers that died.
        deaths,
    }
}

/// A request, with what its session says of itself.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Read { inode: InodeId },
    Change { inode: InodeId },
    Renew,
    Listen { connection: u64, acknowledged: u64, life: u64 },
}

#[derive(Clone, Debug)]
enum Answer {
    Shown { inode: InodeId, value: u64, leased: bool, asked: Asked },
    Changed { inode: InodeId },
    Renewed { told: LeasesRenewed, left: u64 },
    News { connection: u64, life: u64, recalls: Vec<(u64, InodeId)> },
    Ended,
}

#[derive(Clone, Debug)]
enum Event {
    Arrives {
        holder: usize,
        session: u64,
        ask: Ask,
        asked: Asked,
        left: u64,
    },
    Answered {
        holder: usize,
        session: u64,
        answer: Answer,
    },
    /// A holder does something of its own.
    Acts {
        holder: usize,
    },
    /// It has done what it was told.
    Handled {
        holder: usize,
        session: u64,
        connection: u64,
        life: u64,
        recalls: Vec<(u64, InodeId)>,
    },
    /// It drops what it should have dropped before.
    DropsLate {
        holder: usize,
        inode: InodeId,
    },
    /// The server looks at its clock.
    ServerWakes,
    Dies,
}

struct Run {
    dice: Dice,
    bug: LeaseBug,
    agenda: Agenda<Event>,
    server: Server,
    holders: Vec<Holder>,
    /// The newest value of each inode that an answer which has left shows.
    shown: BTreeMap<InodeId, u64>,
    tally: LeaseTally,
}

fn inode(number: u64) -> InodeId {
    InodeId::new(Slot(0), number)
}

/// Runs a seed to its end; what does not hold.
///
/// # Errors
/// The first thing that is not as it must be, and when.
pub fn run_leases(seed: u64, bug: LeaseBug) -> Result<LeaseTally, String> {
    let holders = (0..HOLDERS).map(Holder::new).collect();
    let mut run = Run {
        dice: Dice(seed),
        bug,
        agenda: Agenda::default(),
        server: Server::default(),
        holders,
        shown: BTreeMap::new(),
        tally: LeaseTally::default(),
    };
    run.begin();
    run.run().map_err(|what| format!("at {} ms: {what}", run.agenda.now))?;
    Ok(run.tally)
}

impl Run {
    fn begin(&mut self) {
        for holder in 0..self.holders.len() {
            self.connect(holder);
            let at = self.dice.roll(500);
            self.agenda.at(at, Event::Acts { holder });
        }
        self.agenda.at(WAKE_MILLIS, Event::ServerWakes);
        // One life in two ends, when it will.
        if self.dice.percent(50) {
            let at = self.dice.roll(RUN_MILLIS);
            self.agenda.at(at, Event::Dies);
        }
    }

    fn run(&mut self) -> Result<(), String> {
        while let Some(event) = self.agenda.next() {
            if self.agenda.now > RUN_MILLIS {
                break;
            }
            match event {
                Event::Arrives { holder, session, ask, asked, left } => {
                    self.arrives(holder, session, ask, (asked, left))?;
                }
                Event::Answered { holder, session, answer } => self.answered(holder, session, answer),
                Event::Acts { holder } => self.acts(holder)?,
                Event::Handled { holder, session, connection, life, recalls } => {
                    self.handled(holder, session, connection, life, recalls);
                }
                Event::DropsLate { holder, inode } => self.holders[holder].drops(inode),
                Event::ServerWakes => self.server_wakes()?,
                Event::Dies => self.server_dies(),
            }
        }
        Ok(())
    }

    /// How long a message takes: mostly a moment, at times longer than a lease lasts.
    fn delay(&mut self) -> u64 {
        match self.dice.roll(20) {
            0 => self.dice.roll(1_500),
            1..=4 => self.dice.roll(200),
            _ => self.dice.roll(5),
        }
    }
}
