//! The records of the operation log and of snapshots: their kinds on disk, the place that each belongs to,
//! and their bodies.
//!
//! [`crate::framing`] frames them. A new record takes the next number of its range in `KINDS` and a line in
//! `record_golden.txt`.

use ramlace_base::{Position, SessionId, Slot, Timestamp};
use ramlace_lanes::{LaneChange, News, StoreStep};
use ramlace_namespace::{Command, Room};
use ramlace_slot::SlotChange;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sessions::SessionRecord;

/// What a record belongs to. Each place counts its own records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The server: sessions, and what holds for all slots.
    Server,
    /// A slot's.
    Slot(Slot),
}

impl Place {
    /// The number of the server as a place; slots have their own numbers.
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

/// A position in the history of a place: after this many of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The place.
    pub place: Place,
    /// The number of records so far.
    pub position: Position,
}

/// How much of a nearly full store a record may take. Several records together may take what the most urgent
/// one may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// All but half of the headroom.
    #[default]
    Ordinary,
    /// The same, if compaction makes no room; then the rest of the headroom.
    AtLast,
    /// Everything that is left: it frees memory or ends something.
    Urgent,
}

/// One event.
#[derive(Debug)]
pub enum Record {
    /// A session began.
    SessionOpened(SessionRecord),
    /// A session ended. Records of the slots that know it follow; each removes what the session has left
    /// there.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// When.
        now: Timestamp,
    },
    /// Leases are given from now on; or all that were given are over.
    GivesLeases(bool),
    /// A session got a lease on bytes: its kernel may have pages, and programs of a strict mount may have
    /// stored into them.
    SessionKeepsPages {
        /// Which.
        session: SessionId,
        /// It is of a strict mount.
        strict: bool,
    },
    /// Pages that a session still has to drop are about to change, or were dropped; or it is not known what
    /// it may have from before a restart.
    Pages(News),
    /// Something happened to a slot.
    Slot {
        /// The slot.
        slot: Slot,
        /// What.
        change: SlotChange,
    },
    /// In snapshots: a piece of a slot. The pieces of a slot follow one another, and the position is the
    /// slot's.
    SlotPiece {
        /// The slot.
        slot: Slot,
        /// It is the slot's last piece.
        last: bool,
        /// A part of its value in postcard.
        bytes: Vec<u8>,
    },
}

/// The number of each kind of record on disk. A number is never reused for another kind.
///
/// 1 to 63 are the server's, 64 to 127 a slot's, from 128 on those of snapshots. Used before: 128 (a slot's
/// names), 129 (its lanes), 130 (a whole slot).
#[cfg(test)]
pub const KINDS: [(u16, &str); 13] = [
    (SESSION_OPENED, "SessionOpened"),
    (SESSION_ENDED, "SessionEnded"),
    (GIVES_LEASES, "GivesLeases"),
    (SESSION_KEEPS_PAGES, "SessionKeepsPages"),
    (PAGES_OUTDATED, "Pages.Outdated"),
    (PAGES_DROPPED, "Pages.Dropped"),
    (PAGES_WORTHLESS, "Pages.Worthless"),
    (PAGES_RETURNED, "Pages.Returned"),
    (SLOT_BORN, "Slot.Born"),
    (SLOT_COMMAND, "Slot.Command"),
    (SLOT_LANE, "Slot.Lane"),
    (SLOT_SESSION_ENDED, "Slot.SessionEnded"),
    (SLOT_PIECE, "SlotPiece"),
];
const SESSION_OPENED: u16 = 1;
const SESSION_ENDED: u16 = 2;
const GIVES_LEASES: u16 = 3;
const SESSION_KEEPS_PAGES: u16 = 4;
const PAGES_OUTDATED: u16 = 5;
const PAGES_DROPPED: u16 = 6;
const PAGES_WORTHLESS: u16 = 7;
const PAGES_RETURNED: u16 = 8;
const SLOT_BORN: u16 = 64;
const SLOT_COMMAND: u16 = 65;
const SLOT_LANE: u16 = 66;
const SLOT_SESSION_ENDED: u16 = 67;
const SLOT_PIECE: u16 = 131;

impl Record {
    /// A command to a slot.
    pub fn command(slot: Slot, command: Command, room: Room) -> Record {
        Record::Slot { slot, change: SlotChange::Command { command: Box::new(command), room } }
    }

    /// A change of a slot's lanes.
    pub fn lane(slot: Slot, change: LaneChange) -> Record {
        Record::Slot { slot, change: SlotChange::Lane(change) }
    }

    /// The step on the bytes of a lane that is done before the record is written.
    pub fn frees(&self) -> Option<StoreStep> {
        match self {
            Record::Slot { change, .. } => change.frees(),
            _ => None,
        }
    }

    /// How much of a nearly full store it may take.
    pub fn urgency(&self) -> Urgency {
        match self {
            Record::SessionEnded { .. } => Urgency::Urgent,
            // Without this record pages cannot be changed, and so not freed either. But writes over old bytes
            // make any number of these records, so they must not take everything.
            Record::Pages(News::Outdated { .. } | News::Worthless { .. }) => Urgency::AtLast,
            Record::Slot { change, .. } if change.is_urgent() => Urgency::Urgent,
            _ => Urgency::Ordinary,
        }
    }

    /// The place that it belongs to.
    pub fn place(&self) -> Place {
        match self {
            Record::SessionOpened(_)
            | Record::SessionEnded { .. }
            | Record::GivesLeases(_)
            | Record::SessionKeepsPages { .. }
            | Record::Pages(_) => Place::Server,
            Record::Slot { slot, .. } | Record::SlotPiece { slot, .. } => Place::Slot(*slot),
        }
    }

    /// The number of its kind.
    pub fn kind(&self) -> u16 {
        match self {
            Record::SessionOpened(_) => SESSION_OPENED,
            Record::SessionEnded { .. } => SESSION_ENDED,
            Record::GivesLeases(_) => GIVES_LEASES,
            Record::SessionKeepsPages { .. } => SESSION_KEEPS_PAGES,
            Record::Pages(News::Outdated { .. }) => PAGES_OUTDATED,
            Record::Pages(News::Dropped { .. }) => PAGES_DROPPED,
            Record::Pages(News::Worthless { .. }) => PAGES_WORTHLESS,
            Record::Pages(News::Returned { .. }) => PAGES_RETURNED,
            Record::Slot { change: SlotChange::Born(_), .. } => SLOT_BORN,
            Record::Slot { change: SlotChange::Command { .. }, .. } => SLOT_COMMAND,
            Record::Slot { change: SlotChange::Lane(_), .. } => SLOT_LANE,
            Record::Slot { change: SlotChange::SessionEnded { .. }, .. } => SLOT_SESSION_ENDED,
            Record::SlotPiece { .. } => SLOT_PIECE,
        }
    }

    /// Appends its body to `into`.
    pub fn encode_body(&self, mut into: Vec<u8>) -> Vec<u8> {
        match self {
            Record::SessionOpened(session) => put(into, session),
            Record::SessionEnded { session, now } => put(into, &(session, now)),
            Record::GivesLeases(given) => put(into, given),
            Record::SessionKeepsPages { session, strict } => put(into, &(session, strict)),
            Record::Pages(
                News::Outdated { place, session, pages } | News::Dropped { place, session, pages },
            ) => put(into, &(place, session, pages)),
            Record::Pages(News::Worthless { session } | News::Returned { session }) => put(into, session),
            Record::Slot { change, .. } => match change {
                SlotChange::Born(birth) => put(into, birth),
                SlotChange::Command { command, room } => put(into, &(command, room)),
                SlotChange::Lane(change) => put(into, change),
                SlotChange::SessionEnded { session, now } => put(into, &(session, now)),
            },
            Record::SlotPiece { last, bytes, .. } => {
                into.push(u8::from(*last));
                into.extend_from_slice(bytes);
                into
            }
        }
    }

    /// The record of this kind and place that has this body.
    ///
    /// Errors: what is wrong with it.
    pub fn decode(kind: u16, place: Place, body: &[u8]) -> Result<Record, &'static str> {
        let slot = match place {
            Place::Slot(slot) => Ok(slot),
            Place::Server => Err("a record of a slot does not say of which"),
        };
        let of_slot = |change: SlotChange| slot.map(|slot| Record::Slot { slot, change });
        let record = match kind {
            SESSION_OPENED => Record::SessionOpened(take(body)?),
            SESSION_ENDED => {
                let (session, now) = take(body)?;
                Record::SessionEnded { session, now }
            }
            GIVES_LEASES => Record::GivesLeases(take(body)?),
            SESSION_KEEPS_PAGES => {
                let (session, strict) = take(body)?;
                Record::SessionKeepsPages { session, strict }
            }
            PAGES_OUTDATED => {
                let (place, session, pages) = take(body)?;
                Record::Pages(News::Outdated { place, session, pages })
            }
            PAGES_DROPPED => {
                let (place, session, pages) = take(body)?;
                Record::Pages(News::Dropped { place, session, pages })
            }
            PAGES_WORTHLESS => Record::Pages(News::Worthless { session: take(body)? }),
            PAGES_RETURNED => Record::Pages(News::Returned { session: take(body)? }),
            SLOT_BORN => of_slot(SlotChange::Born(take(body)?))?,
            SLOT_COMMAND => {
                let (command, room) = take(body)?;
                of_slot(SlotChange::Command { command, room })?
            }
            SLOT_LANE => of_slot(SlotChange::Lane(take(body)?))?,
            SLOT_SESSION_ENDED => {
                let (session, now) = take(body)?;
                of_slot(SlotChange::SessionEnded { session, now })?
            }
            SLOT_PIECE => match body {
                [last @ (0 | 1), bytes @ ..] if !bytes.is_empty() => {
                    Record::SlotPiece { slot: slot?, last: *last == 1, bytes: bytes.to_vec() }
                }
                _ => return Err("a piece of a slot is none"),
            },
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
        Ok(_) => Err("a record is longer than its content"),
        Err(_) => Err("a record cannot be decoded"),
    }
}
