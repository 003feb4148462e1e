//! Calls of clients in virtual time: the rule by which requests are repeated (`crates/client/src/session/retry.rs`), its pauses, the numbers of
//! changes and the outbox of what was cancelled, over a slot that three servers hand each other, and a network that delays and cuts.
//!
//! What holds: a call ends within 5 s, whatever its server does; where servers only restart, and slots move, none fails; a server that has
//! left a call unanswered costs the next one no more than a sign of life; a change is made once, or not at all where its caller was told so;
//! and one that was cancelled is not made any more once that was acknowledged. A [`CallBug`] planted in what a client must do for the rule must be found.

mod client;
mod server;

use ramlace_base::{Error, InodeId, Name, Sequence};
use ramlace_namespace::Reply;
use ramlace_slot::SlotValue;

use crate::agenda::Agenda;
use crate::calling::Failure;
use crate::dice::Dice;
use crate::tally::tally;
use client::Client;
use server::{Does, Request, Server};

const SERVERS: usize = 3;
const CLIENTS: usize = 2;
/// How long there is trouble, in virtual time, and how long a run lasts at most: the longest delay of a message is behind it.
const TROUBLE_MILLIS: u64 = 25_000;
const RUN_MILLIS: u64 = 55_000;
/// What a suspected server costs: its sign of life, and asking the two others for a newer map.
const SILENT_COSTS_MILLIS_MAX: u64 = 1_600;

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallBug {
    /// None.
    None,
    /// A second attempt has a number of its own.
    RetriesWithANewNumber,
    /// Connections to a server's last life stay in use.
    KeepsDeadConnections,
    /// A server that left a call unanswered is asked for no sign of life.
    AsksSuspects,
    /// Nobody is asked for a newer map.
    NeverAsksForMap,
    /// Pauses are made also where there is no time for another attempt.
    PausesForEver,
    /// Each attempt has the whole time.
    RenewsDeadlines,
    /// It is not noted that an answer was lost.
    ForgetsLostAnswers,
    /// A cancellation counts as acknowledged when it was sent.
    ForgetsUnacknowledgedCancels,
    /// An answer to an attempt that is over is taken for that to the next.
    MistakesAnswers,
}

impl CallBug {
    /// All that can be planted.
    pub const ALL: [CallBug; 9] = [
        CallBug::RetriesWithANewNumber,
        CallBug::KeepsDeadConnections,
        CallBug::AsksSuspects,
        CallBug::NeverAsksForMap,
        CallBug::PausesForEver,
        CallBug::RenewsDeadlines,
        CallBug::ForgetsLostAnswers,
        CallBug::ForgetsUnacknowledgedCancels,
        CallBug::MistakesAnswers,
    ];
}

tally! {
    /// How much has happened.
    CallTally {
        /// Calls that were answered.
        answered,
        /// Attempts beside the first of each.
        repeated,
        /// Calls that failed.
        failed,
        /// Of these, changes that might have been made yet.
        doubted,
        /// Calls that met a suspected server.
        met_silent,
        /// Processes that died.
        deaths,
        /// Servers that said nothing for a while, or were not there.
        silences,
        /// Times that the slot moved.
        moves,
    }
}

enum Event {
    /// A program makes the next call.
    Calls(usize),
    /// The next attempt begins.
    Tries {
        client: usize,
        attempt: u64,
    },
    /// A server that has yet to greet is looked at again.
    Greets {
        client: usize,
        attempt: u64,
        until: u64,
    },
    Arrives(Request),
    Answered {
        client: usize,
        attempt: u64,
        told: Result<Reply, Error>,
        map: Option<Map>,
    },
    Fails {
        client: usize,
        attempt: u64,
        failure: Failure,
    },
    /// What could be done about a failure is done.
    Judged {
        client: usize,
        attempt: u64,
        failure: Failure,
        map: Option<Map>,
    },
    /// A client's heart beats.
    Beats(usize),
    /// It looks whether somebody is to be told.
    Tells(usize),
    /// Something goes wrong.
    Trouble,
    /// A server does its work again.
    Recovers(usize),
}

/// Which server has the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Map {
    epoch: u64,
    server: usize,
}

/// What a client was told of a name that it was to make.
enum Reported {
    Made(InodeId),
    /// It is not there, and will not be.
    No,
    /// That was cancelled; whether it was there when the slot knew that.
    Cancelled {
        sequence: Sequence,
        was_there: Option<bool>,
    },
}

struct Run {
    dice: Dice,
    bug: CallBug,
    /// Servers restart, the slot moves, connections are lost, and nothing else.
    gentle: bool,
    agenda: Agenda<Event>,
    servers: Vec<Server>,
    slot: SlotValue,
    map: Map,
    clients: Vec<Client>,
    reported: Vec<(usize, Name, Reported)>,
    tally: CallTally,
}

/// Runs a seed to its end; what does not hold. Seeds that are even are gentle.
///
/// # Errors
/// The first thing that is not as it must be, and when.
pub fn run_calls(seed: u64, bug: CallBug) -> Result<CallTally, String> {
    let mut run = Run {
        dice: Dice(seed),
        bug,
        gentle: seed.is_multiple_of(2),
        agenda: Agenda::default(),
        servers: (0..SERVERS).map(|_| Server::default()).collect(),
        slot: server::new_slot(),
        map: Map { epoch: 1, server: 0 },
        clients: (0..CLIENTS).map(|_| Client::new()).collect(),
        reported: Vec::new(),
        tally: CallTally::default(),
    };
    run.run().map_err(|what| format!("at {} ms: {what}", run.agenda.now))?;
    Ok(run.tally)
}

impl Run {
    fn run(&mut self) -> Result<(), String> {
        for client in 0..CLIENTS {
            self.agenda.at(1, Event::Calls(client));
            self.agenda.at(ramlace_base::limits::HEARTBEAT_MILLIS, Event::Beats(client));
            self.agenda.at(1, Event::Tells(client));
        }
        self.agenda.at(200, Event::Trouble);
        while let Some(event) = self.agenda.next() {
            if self.agenda.now > RUN_MILLIS {
                break;
            }
            match event {
                Event::Calls(client) => self.calls(client)?,
                Event::Tries { client, attempt } => self.tries(client, attempt)?,
                Event::Greets { client, attempt, until } => self.greets(client, attempt, until),
                Event::Arrives(request) => self.arrives(request),
                Event::Answered { client, attempt, told, map } => {
                    self.answered(client, attempt, told, map)?;
                }
                Event::Fails { client, attempt, failure } => self.fails(client, attempt, failure),
                Event::Judged { client, attempt, failure, map } => {
                    self.judged(client, attempt, &failure, map)?;
                }
                Event::Beats(client) => self.beats(client),
                Event::Tells(client) => self.tells(client)?,
                Event::Trouble => self.trouble(),
                Event::Recovers(server) => self.recovers(server),
            }
        }
        self.finish()
    }

    fn is_calm(&self) -> bool {
        self.agenda.now > TROUBLE_MILLIS
    }

    fn trouble(&mut self) {
        if self.is_calm() {
            return;
        }
        let server = self.dice.roll(SERVERS as u64) as usize;
        let which = self.dice.roll(10);
        if self.servers[server].does == Does::Serves {
            match which {
                0..=3 => {
                    self.tally.deaths += 1;
                    self.dies(server, Does::Restarts);
                    let away = 1 + self.dice.roll(900);
                    self.agenda.after(away, Event::Recovers(server));
                }
                4..=6 => {
                    self.tally.moves += u64::from(self.map.server != server);
                    if self.servers[self.map.server].does == Does::Serves && self.map.server != server {
                        self.map = Map { epoch: self.map.epoch + 1, server };
                    }
                }
                _ if self.gentle => {}
                7 => {
                    self.tally.silences += 1;
                    self.dies(server, Does::Refuses);
                    let away = 1 + self.dice.roll(6_000);
                    self.agenda.after(away, Event::Recovers(server));
                }
                _ => {
                    self.tally.silences += 1;
                    self.becomes(server, Does::Nothing);
                    let away = 1 + self.dice.roll(9_000);
                    self.agenda.after(away, Event::Recovers(server));
                }
            }
        }
        let next = if self.gentle { 1_000 + self.dice.roll(1_500) } else { self.dice.roll(1_500) };
        self.agenda.after(next, Event::Trouble);
    }

    /// Everybody was told what is so, and what was cancelled has been acknowledged.
    fn finish(&self) -> Result<(), String> {
        for client in &self.clients {
            if client.count_pending() > 0 {
                return Err(format!(
                    "{} changes are cancelled, and nobody hears of it",
                    client.count_pending()
                ));
            }
        }
        for (client, name, told) in &self.reported {
            let there = self.lookup(name);
            let error =
                |what: &str| Err(format!("client {client}: {name:?} {what}, and it leads to {there:?}"));
            match told {
                Reported::Made(inode) if there != Some(*inode) => return error("was made"),
                Reported::No if there.is_some() => return error("was not made"),
                Reported::Cancelled { was_there: Some(was), .. } if there.is_some() != *was => {
                    return error("was cancelled when it was otherwise");
                }
                Reported::Cancelled { was_there: None, .. } => {
                    return error("was cancelled, and nobody knew");
                }
                _ => {}
            }
        }
        Ok(())
    }
}
