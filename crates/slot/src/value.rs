//! The value, and the one door through which it changes.

use ramlace_base::{InodeId, Position, Result, Sequence, SessionId, Slot, Timestamp};
use ramlace_lanes::{LaneEffect, LaneTable, StoreStep};
use ramlace_namespace::{Command, Effect, Op, Origin, Room, SlotState};
use serde::{Deserialize, Serialize};

use crate::change::{SlotBirth, SlotChange};

/// Everything that a slot is. Serialized, it is the slot's snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotValue {
    slot: Slot,
    /// Changes that it has taken.
    position: Position,
    /// Its names, once something has happened to them. They include what sessions have left there.
    names: Option<SlotState>,
    /// Its lanes, in their order, and the writes that are done in them.
    lanes: LaneTable,
}

/// The parts of a slot that count against a limit of its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Inodes that live here.
    pub inodes: u64,
    /// Bytes of inline files.
    pub inline_bytes: u64,
    /// Members of barriers that are remembered here.
    pub barrier_members: u64,
}

/// By how much that has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountsChange {
    /// See [`Counts::inodes`].
    pub inodes: i64,
    /// See [`Counts::inline_bytes`].
    pub inline_bytes: i64,
    /// See [`Counts::barrier_members`].
    pub barrier_members: i64,
}

impl Counts {
    /// These, and a change of them.
    #[must_use]
    pub fn after(self, change: CountsChange) -> Counts {
        let add = |count: u64, change| {
            count.checked_add_signed(change).expect("a slot gives back what it has told")
        };
        Counts {
            inodes: add(self.inodes, change.inodes),
            inline_bytes: add(self.inline_bytes, change.inline_bytes),
            barrier_members: add(self.barrier_members, change.barrier_members),
        }
    }

    fn change_since(self, before: Counts) -> CountsChange {
        CountsChange {
            inodes: self.inodes as i64 - before.inodes as i64,
            inline_bytes: self.inline_bytes as i64 - before.inline_bytes as i64,
            barrier_members: self.barrier_members as i64 - before.barrier_members as i64,
        }
    }
}

/// The effects of a change.
#[derive(Debug, Default)]
pub struct Effects {
    /// Effects of the names.
    pub names: Vec<Effect>,
    /// The effect on a lane.
    pub lane: Option<LaneEffect>,
    /// The step on the bytes of a lane, to be done before the next change.
    pub store: Option<StoreStep>,
    /// The change of the counts that are limited.
    pub counts: CountsChange,
    /// The change of the bytes that kept replies take, for each session for which they may have changed.
    pub kept: Vec<(SessionId, i64)>,
}

impl SlotValue {
    /// A slot to which nothing has happened.
    #[must_use]
    pub fn new(slot: Slot) -> SlotValue {
        SlotValue { slot, position: Position::default(), names: None, lanes: LaneTable::default() }
    }

    /// Which slot it is.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// How many changes it has taken.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// Its names; `None`: nothing has happened to them yet.
    #[must_use]
    pub fn names(&self) -> Option<&SlotState> {
        self.names.as_ref()
    }

    /// Its lanes.
    #[must_use]
    pub fn lanes(&self) -> &LaneTable {
        &self.lanes
    }

    /// The counts that are limited by the server.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.names.as_ref().map_or(Counts::default(), counts)
    }

    /// Whether a session has left something here, so that its end changes something.
    #[must_use]
    pub fn knows(&self, session: SessionId) -> bool {
        let named = self.names.as_ref().is_some_and(|names| names.has_session(session));
        named || self.lanes.knows(session)
    }

    /// The sessions that have left something here; some may come twice.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        let named = self.names.iter().flat_map(SlotState::sessions);
        named.chain(self.lanes.sessions())
    }

    /// Why this cannot be the next change.
    #[must_use]
    pub fn refuses(&self, change: &SlotChange) -> Option<&'static str> {
        match (change, &self.names) {
            (SlotChange::Command { .. }, None) => Some("a command comes before its slot was born"),
            (SlotChange::Born(_), Some(_)) => Some("a slot is born twice"),
            _ => None,
        }
    }

    /// Applies one change: the only way the value changes.
    ///
    /// Panics when [`SlotValue::refuses`] refuses it: that is a bug of the caller.
    pub fn apply(&mut self, change: &SlotChange) -> Effects {
        self.position = self.position.next();
        let mut effects = Effects { store: change.stores(), ..Effects::default() };
        match change {
            SlotChange::Born(birth) => self.begin(birth, &mut effects),
            SlotChange::Command { command, room } => self.command(command, *room, &mut effects),
            SlotChange::Lane(change) => effects.lane = self.lanes.apply(change),
            SlotChange::SessionEnded { session, now } => self.end_session(*session, *now, &mut effects),
        }
        effects
    }

    fn begin(&mut self, birth: &SlotBirth, effects: &mut Effects) {
        assert!(self.names.is_none(), "{} is born twice", self.slot);
        let mut names = SlotState::new(self.slot, birth.slots, birth.began, birth.hash_seed);
        if self.slot == InodeId::ROOT.slot() {
            names.install_root(birth.owner, birth.now);
        }
        effects.counts = counts(&names).change_since(Counts::default());
        self.names = Some(names);
    }

    fn command(&mut self, command: &Command, room: Room, effects: &mut Effects) {
        let names = self.names.as_mut().expect("a slot is born before its first command");
        let before = counts(names);
        // The end of its delegation may drop replies.
        let holder = names.delegation().map(|held| held.session);
        effects.names = names.apply_within(command, room);
        effects.counts = counts(names).change_since(before);
        let asker = match &command.origin {
            Origin::Client { session, .. } => Some(*session),
            _ => None,
        };
        let answered = effects.names.iter().filter_map(|effect| match effect {
            Effect::Reply { token, .. } => Some(token.session),
            _ => None,
        });
        let told = asker.into_iter().chain(holder).chain(answered);
        effects.kept.extend(told.map(|session| (session, names.take_kept_change(session))));
    }

    fn end_session(&mut self, session: SessionId, now: Timestamp, effects: &mut Effects) {
        self.lanes.end_session(session);
        if let Some(names) = &mut self.names {
            // All of it goes.
            effects.kept.push((session, -(names.reported_reply_bytes(session) as i64)));
            let command = Command { now, origin: Origin::Server, op: Op::EndSession { session } };
            self.command(&command, Room::ForInodes, effects);
        }
    }

    /// The bytes that each session's kept replies take here, for an owner of the value that has no figures
    /// yet. Which figures the owner has is not part of the value.
    pub fn kept_anew(&mut self) -> impl Iterator<Item = (SessionId, u64)> + '_ {
        self.names.iter_mut().flat_map(SlotState::kept_anew)
    }

    /// Whether a change of bytes was made already. `below`: the changes for which the session no longer waits, as far
    /// as the caller knows; those that the value has taken say it, too.
    ///
    /// Errors: `Stale` for one for which the session no longer waits; `TooMany` beyond the limit of those under way.
    pub fn is_done(&self, session: SessionId, sequence: Sequence, below: Sequence) -> Result<bool> {
        self.lanes.is_done(session, sequence, below)
    }
}

fn counts(names: &SlotState) -> Counts {
    Counts {
        inodes: names.inode_count(),
        inline_bytes: names.inline_bytes(),
        barrier_members: names.barrier_members(),
    }
}
