//! The records of the operation log and of snapshots: what each is called on disk, whose it is, and its body.
//!
//! [`crate::framing`] frames them. A new record takes the next number of its range in [`KINDS`] and a line in
//! `record_golden.txt`.

use std::borrow::Cow;

use ramlace_base::{Epoch, Position, SessionId, Slot, Timestamp};
use ramlace_lanes::{LaneChange, LaneTable, StoreStep};
use ramlace_namespace::{Command, Room, SlotState};
use ramlace_wire::Owner;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sessions::SessionRecord;

/// How a slot's state begins: everything that its first command must find again on replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotBirth {
    /// Slots of the pool.
    pub slots: u32,
    /// The epoch in which its counter begins.
    pub began: Epoch,
    /// Keys the order of directory entries.
    pub hash_seed: u64,
    /// Owner of the root directory, should the slot hold it.
    pub owner: Owner,
    /// The root's times.
    pub now: Timestamp,
}

/// Whose record it is. Each counts its own records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The server's: who is connected, and what holds for all slots.
    Server,
    /// A slot's.
    Slot(Slot),
}

impl Place {
    /// The server's number; slots have their own.
    const SERVER: u32 = u32::MAX;

    /// The place's number on disk.
    pub fn number(self) -> u32 {
        match self {
            Place::Server => Place::SERVER,
            Place::Slot(slot) => u32::from(slot.0),
        }
    }

    /// The place with this number.
    pub fn from_number(number: u32) -> Option<Place> {
        match number {
            Place::SERVER => Some(Place::Server),
            slot => u16::try_from(slot).ok().map(|slot| Place::Slot(Slot(slot))),
        }
    }
}

/// Where in the history of a place something is: after so many of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Whose history.
    pub place: Place,
    /// Records so far.
    pub position: Position,
}

/// One thing that happened.
#[derive(Debug)]
pub enum Record<'state> {
    /// A session began.
    SessionOpened(SessionRecord),
    /// A session ended; its traces in every slot go.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// When.
        now: Timestamp,
    },
    /// Leases are given from now on, or those that were are over.
    GivesLeases(bool),
    /// A slot's state began.
    SlotBorn {
        /// The slot.
        slot: Slot,
        /// How.
        birth: SlotBirth,
    },
    /// A command to a slot.
    Command {
        /// The slot.
        slot: Slot,
        /// The command.
        command: Box<Command>,
        /// Whether it may make an inode.
        room: Room,
    },
    /// Something happened to the lanes of a slot.
    Lane {
        /// The slot.
        slot: Slot,
        /// What.
        change: LaneChange,
    },
    /// In snapshots: a slot's whole state.
    SlotState(Box<Cow<'state, SlotState>>),
    /// In snapshots: all lanes of a slot.
    SlotLanes {
        /// The slot.
        slot: Slot,
        /// They.
        table: Box<Cow<'state, LaneTable>>,
    },
}

/// The number of each kind of record on disk. A number that was taken once is never given to another kind.
///
/// 1 to 63 are the server's, 64 to 127 a slot's, from 128 on those of snapshots.
#[cfg(test)]
pub const KINDS: [(u16, &str); 8] = [
    (SESSION_OPENED, "SessionOpened"),
    (SESSION_ENDED, "SessionEnded"),
    (GIVES_LEASES, "GivesLeases"),
    (SLOT_BORN, "SlotBorn"),
    (COMMAND, "Command"),
    (LANE, "Lane"),
    (SLOT_STATE, "SlotState"),
    (SLOT_LANES, "SlotLanes"),
];
const SESSION_OPENED: u16 = 1;
const SESSION_ENDED: u16 = 2;
const GIVES_LEASES: u16 = 3;
const SLOT_BORN: u16 = 64;
const COMMAND: u16 = 65;
const LANE: u16 = 66;
const SLOT_STATE: u16 = 128;
const SLOT_LANES: u16 = 129;

impl Record<'_> {
    /// What it does to the bytes of a lane.
    pub fn bytes(&self) -> Option<StoreStep> {
        match self {
            Record::Lane { change, .. } => change.bytes(),
            _ => None,
        }
    }

    /// Whose it is.
    pub fn place(&self) -> Place {
        match self {
            Record::SessionOpened(_) | Record::SessionEnded { .. } | Record::GivesLeases(_) => Place::Server,
            Record::SlotBorn { slot, .. }
            | Record::Command { slot, .. }
            | Record::Lane { slot, .. }
            | Record::SlotLanes { slot, .. } => Place::Slot(*slot),
            Record::SlotState(state) => Place::Slot(state.slot()),
        }
    }

    /// The number of its kind.
    pub fn kind(&self) -> u16 {
        match self {
            Record::SessionOpened(_) => SESSION_OPENED,
            Record::SessionEnded { .. } => SESSION_ENDED,
            Record::GivesLeases(_) => GIVES_LEASES,
            Record::SlotBorn { .. } => SLOT_BORN,
            Record::Command { .. } => COMMAND,
            Record::Lane { .. } => LANE,
            Record::SlotState(_) => SLOT_STATE,
            Record::SlotLanes { .. } => SLOT_LANES,
        }
    }

    /// Whether it is found in snapshots alone: a state, which nothing that came before changes.
    pub fn is_state(&self) -> bool {
        matches!(self, Record::SlotState(_) | Record::SlotLanes { .. })
    }

    /// Appends its body.
    pub fn encode_body(&self, into: Vec<u8>) -> Vec<u8> {
        match self {
            Record::SessionOpened(session) => put(into, session),
            Record::SessionEnded { session, now } => put(into, &(session, now)),
            Record::GivesLeases(given) => put(into, given),
            Record::SlotBorn { birth, .. } => put(into, birth),
            Record::Command { command, room, .. } => put(into, &(command, room)),
            Record::Lane { change, .. } => put(into, change),
            Record::SlotState(state) => put(into, state),
            Record::SlotLanes { table, .. } => put(into, table),
        }
    }

    /// The record of this kind and place that has this body.
    ///
    /// Errors: what is wrong with it.
    pub fn decode(kind: u16, place: Place, body: &[u8]) -> Result<Record<'static>, &'static str> {
        let slot = match place {
            Place::Slot(slot) => Ok(slot),
            Place::Server => Err("a record of a slot does not say of which"),
        };
        let record = match kind {
            SESSION_OPENED => Record::SessionOpened(take(body)?),
            SESSION_ENDED => {
                let (session, now) = take(body)?;
                Record::SessionEnded { session, now }
            }
            GIVES_LEASES => Record::GivesLeases(take(body)?),
            SLOT_BORN => Record::SlotBorn { slot: slot?, birth: take(body)? },
            COMMAND => {
                let (command, room) = take(body)?;
                Record::Command { slot: slot?, command, room }
            }
            LANE => Record::Lane { slot: slot?, change: take(body)? },
            SLOT_STATE => Record::SlotState(Box::new(Cow::Owned(take(body)?))),
            SLOT_LANES => Record::SlotLanes { slot: slot?, table: Box::new(Cow::Owned(take(body)?)) },
            _ => return Err("no record has such a number"),
        };
        if record.place() == place { Ok(record) } else { Err("a record names another slot than its header") }
    }
}

fn put<T: Serialize>(into: Vec<u8>, body: &T) -> Vec<u8> {
    postcard::to_extend(body, into).expect("every record can be written")
}

fn take<T: DeserializeOwned>(body: &[u8]) -> Result<T, &'static str> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err("a record is longer than what it tells"),
        Err(_) => Err("a record cannot be decoded"),
    }
}
