//! What goes into a slot and what comes out of it.
//!
//! What is written to a slot's log or snapshot has explicit numbers: the tables stand below their enums. A new
//! variant takes the next number, and the number of one that goes is never used again. Bytes are postcard; the
//! tests of the server's records fix them, and the server refuses a log of another format.

use ramlace_base::{
    Epoch, Error, ErrorKind, InodeId, LaneId, Sequence, SessionId, Slot, Timestamp, limits, numbered_variants,
};
use ramlace_wire::coordination;
use ramlace_wire::inline;
use ramlace_wire::locks;
use ramlace_wire::namespace as wire;
use ramlace_wire::{Attributes, Credentials, ErrorBody, Kind, Request, decode_body, encode_body};
use ramlace_wire::{peer, xattrs};
use serde::{Deserialize, Serialize};

use crate::mend::Disowned;

/// One step of a slot: the operation, its time, and its origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// The server's clock, read once before the command is logged.
    pub now: Timestamp,
    /// Which caller wants it.
    pub origin: Origin,
    /// The operation.
    pub op: Op,
}

/// Whether a command may make an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It may.
    ForInodes,
    /// The server holds as many as it may.
    None,
}

numbered_variants! { Room:
    1 ForInodes;
    2 None;
}

/// The origin of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// A client's mutation.
    Client {
        /// Its session.
        session: SessionId,
        /// The mutation's number in the session, from 1.
        sequence: Sequence,
        /// Every mutation of the session below this number has been answered, and the client has
        /// seen the answer.
        acknowledged_below: Sequence,
        /// The user for whom it is done.
        who: Credentials,
        /// The session acts for one of several users: what it has open for others gives this user no right.
        on_behalf: bool,
    },
    /// Another slot.
    Peer,
    /// The server itself: the outcome of a delivery, the end of a session.
    Server,
}

numbered_variants! { Origin:
    1 Client { session, sequence, acknowledged_below, who, on_behalf };
    2 Peer;
    3 Server;
}

/// An operation. The requests are the wire's own.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// By a client, at the parent's slot.
    Create(wire::Create),
    /// By a client.
    Open(wire::Open),
    /// By a client.
    BeginPassthrough(wire::BeginPassthrough),
    /// By a client.
    Close(wire::Close),
    /// By a client.
    SetAttributes(wire::SetAttributes),
    /// By a client.
    Truncate(wire::Truncate),
    /// By a client, at the parent's slot.
    Symlink(wire::Symlink),
    /// By a client, at the parent's slot.
    MakeDirectory {
        /// The client's request.
        request: wire::MakeDirectory,
        /// The slots in which the inode may live, in order of preference; a later one is used if an earlier
        /// one has no room. They are slots of live servers, chosen by the shell. A retry may name others; the
        /// first attempt's count.
        homes: Vec<Slot>,
    },
    /// By a client, at the parent's slot.
    RemoveDirectory(wire::RemoveDirectory),
    /// By a client, at the parent's slot.
    Unlink(wire::Unlink),
    /// See the wire.
    OpenEntry(wire::OpenEntry),
    /// See the wire.
    CancelChange(wire::CancelChange),
    /// By a client.
    WriteInline {
        /// The client's request.
        request: inline::WriteInline,
        /// Whether the server has room for more inline bytes. It may have changed by a retry; the first
        /// attempt's counts.
        room: bool,
    },
    /// By a client.
    /// With the epoch of the home's map.
    Promote {
        /// The request.
        request: inline::Promote,
        /// The map's.
        epoch: Epoch,
    },
    /// By a client.
    Extend(wire::Extend),
    /// By a client.
    NoteMemory(wire::NoteMemory),
    /// By a client.
    ReserveAppend(wire::ReserveAppend),
    /// By a client.
    FinishAppend(wire::FinishAppend),
    /// By a client.
    SetLayout(wire::SetLayout),
    /// By a client, at the old entry's directory's slot.
    Rename(Box<wire::Rename>),
    /// By a client, at the new entry's directory's slot.
    Link(wire::Link),
    /// By a client, at the parent's slot.
    MakeNode(wire::MakeNode),
    /// By a client, at the parent's slot.
    CreateUnnamed(wire::CreateUnnamed),
    /// By a client.
    SetXattr(xattrs::SetXattr),
    /// By a client.
    RemoveXattr(xattrs::RemoveXattr),
    /// By a client.
    SetLock(locks::SetLock),
    /// By a client.
    CancelLock(locks::CancelLock),
    /// By a client, at the slot of the barrier's name.
    ArriveBarrier {
        /// The client's request.
        request: coordination::ArriveBarrier,
        /// Whether the server has room for one more member.
        room: bool,
    },
    /// By a client.
    LeaveBarrier(coordination::LeaveBarrier),
    /// By a client.
    ChangeInlineCell {
        /// The client's request.
        request: coordination::ChangeInlineCell,
        /// As with `WriteInline`.
        room: bool,
    },
    /// By the server: a wait for a lock closes a cycle.
    EndLockWait(locks::EndLockWait),
    /// By a peer.
    Prepare(Box<peer::Prepare>),
    /// By a peer.
    Decide(peer::Decide),
    /// By the server: a delivery has been delivered and answered.
    ///
    /// `Retry`, `Moved` and other transient errors leave the delivery open; the shell delivers it
    /// again after a pause, and need not log them.
    DeliveryDone {
        /// The delivery.
        delivery: DeliveryId,
        /// Its answer.
        result: Result<DeliveryAnswer, ErrorBody>,
    },
    /// By the server: the delivery's server cannot be reached now. A caller that waits for it continues; the
    /// delivery stays open where its effect is still pending.
    DeliveryUnreachable {
        /// The delivery.
        delivery: DeliveryId,
    },
    /// By the server: a slot that coordinated operations was lost with its server's memory and has started
    /// over; operations that it had not decided are dropped. See [`crate::SlotState::lost_coordinators`].
    CoordinatorLost {
        /// The slot.
        coordinator: Slot,
        /// The epoch in which it started over.
        began: Epoch,
    },
    /// By the server, which knows where there is room: a directory is spread over slots, if that is
    /// possible now.
    Spread {
        /// The directory; this slot is its home.
        directory: InodeId,
        /// The slot of each partition; the home may be among them.
        partitions: Vec<Slot>,
    },
    /// By the server: the session has ended; everything it says from now on is refused before it
    /// comes here.
    EndSession {
        /// The session.
        session: SessionId,
    },
    /// By the server: a lane is about to begin ([`peer::BeginLane`]). With bytes that a session writes, an empty file's bytes
    /// live in its lanes from now on, as after [`Op::Promote`], unless it has some by now.
    BeginLane {
        /// The lane.
        lane: LaneId,
        /// The session that writes bytes; `SessionId::NONE`: none does.
        by: SessionId,
        /// The present epoch.
        epoch: Epoch,
    },
    /// By the server: drops what came on behalf of another slot that does not know it.
    Disown(Disowned),
    /// By the server: only this session gets answers out of the slot until the delegation ends.
    Delegate {
        /// The session.
        session: SessionId,
    },
    /// By the server: the delegation has ended.
    EndDelegation {
        /// Its number.
        number: u64,
        /// Its holder has the answers of all its changes below this; 0 where it says nothing of them.
        acknowledged_below: Sequence,
    },
}

numbered_variants! { Op:
    1 Create(body);
    2 Open(body);
    3 BeginPassthrough(body);
    4 Close(body);
    5 SetAttributes(body);
    6 Truncate(body);
    7 Symlink(body);
    8 MakeDirectory { request, homes };
    9 RemoveDirectory(body);
    10 Unlink(body);
    11 OpenEntry(body);
    12 CancelChange(body);
    13 WriteInline { request, room };
    14 Promote { request, epoch };
    15 Extend(body);
    16 NoteMemory(body);
    17 ReserveAppend(body);
    18 FinishAppend(body);
    19 SetLayout(body);
    20 Rename(body);
    21 Link(body);
    22 MakeNode(body);
    23 CreateUnnamed(body);
    24 SetXattr(body);
    25 RemoveXattr(body);
    26 SetLock(body);
    27 CancelLock(body);
    28 ArriveBarrier { request, room };
    29 LeaveBarrier(body);
    30 ChangeInlineCell { request, room };
    31 EndLockWait(body);
    32 Prepare(body);
    33 Decide(body);
    34 DeliveryDone { delivery, result };
    35 DeliveryUnreachable { delivery };
    36 CoordinatorLost { coordinator, began };
    37 Spread { directory, partitions };
    38 EndSession { session };
    39 Disown(body);
    41 Delegate { session };
    42 EndDelegation { number, acknowledged_below };
    43 BeginLane { lane, by, epoch };
}

/// Changes that are logged as clients send them: for each the message, whose name the command has, and its
/// implementation in a slot.
macro_rules! asked_by_clients {
    ($then:ident) => {
        $then! { (slot, caller, request, effects)
            Create: slot.create(caller, request);
            Open: slot.open(caller, *request);
            OpenEntry: slot.open_entry(caller, request);
            CancelChange: slot.cancel_change(caller, *request, effects);
            BeginPassthrough: slot.begin_passthrough(caller, *request, effects);
            Close: slot.close(caller, *request, effects);
            SetAttributes: slot.set_attributes(caller, *request, effects);
            Truncate: slot.truncate(caller, *request, effects);
            Symlink: slot.symlink(caller, request);
            MakeNode: slot.make_node(caller, request);
            CreateUnnamed: slot.create_unnamed(caller, request);
            SetXattr: slot.set_xattr(caller, request, effects);
            RemoveXattr: slot.remove_xattr(caller, request, effects);
            RemoveDirectory: slot.remove_directory(caller, request, effects);
            Unlink: slot.unlink(caller, request, effects);
            Rename: slot.rename(caller, request, effects);
            Link: slot.link(caller, request, effects);
            Extend: slot.extend(caller, *request);
            NoteMemory: slot.note_memory(caller, *request);
            ReserveAppend: slot.reserve_append(caller, *request);
            FinishAppend: slot.finish_append(caller, *request, effects);
            SetLayout: slot.set_layout(caller, *request, effects);
            SetLock: slot.set_lock(caller, *request, effects);
            CancelLock: slot.cancel_lock(caller, *request, effects);
            LeaveBarrier: slot.leave_barrier(caller, request);
        }
    };
}
pub(crate) use asked_by_clients;

macro_rules! reading {
    ($names:tt $($name:ident: $step:expr;)*) => {
        impl Op {
            /// The change that a client's message requests, and its slot: `named` is the one in the message's
            /// header. The server's additions are still missing.
            ///
            /// Errors: `Protocol` for an invalid body, and for a message that requests no change of a slot.
            pub fn asked(kind: Kind, body: &[u8], named: Slot) -> Result<(Slot, Op), Error> {
                let op = match kind {
                    $(Kind::$name => Op::$name(decode_body(kind, body)?),)*
                    Kind::MakeDirectory => {
                        Op::MakeDirectory { request: decode_body(kind, body)?, homes: Vec::new() }
                    }
                    Kind::WriteInline => Op::WriteInline { request: decode_body(kind, body)?, room: false },
                    Kind::Promote => Op::Promote { request: decode_body(kind, body)?, epoch: Epoch(0) },
                    Kind::ArriveBarrier => {
                        Op::ArriveBarrier { request: decode_body(kind, body)?, room: false }
                    }
                    Kind::ChangeInlineCell => {
                        Op::ChangeInlineCell { request: decode_body(kind, body)?, room: false }
                    }
                    _ => {
                        let text = format!("a {kind:?} is nothing that a slot is asked");
                        return Err(Error::new(ErrorKind::Protocol, text));
                    }
                };
                let slot = match &op {
                    $(Op::$name(request) => request.slot(named),)*
                    Op::WriteInline { request, .. } => request.slot(named),
                    Op::Promote { request, .. } => request.slot(named),
                    Op::ChangeInlineCell { request, .. } => request.slot(named),
                    _ => named,
                };
                Ok((slot, op))
            }
        }
    };
}
asked_by_clients!(reading);

impl Op {
    /// Whether its record may use the last of the store, because it frees memory or ends something.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        matches!(
            self,
            Op::SetLock(locks::SetLock { kind: None, .. })
                | Op::CancelLock(_)
                | Op::EndLockWait(_)
                | Op::LeaveBarrier(_)
                | Op::Unlink(_)
                | Op::RemoveDirectory(_)
                | Op::Close(_)
                | Op::CancelChange(_)
                | Op::FinishAppend(wire::FinishAppend { failed: true, .. })
                | Op::BeginPassthrough(wire::BeginPassthrough { over: true, .. })
                | Op::Truncate(_)
                // A truncation may wait for it.
                | Op::BeginLane { by: SessionId::NONE, .. }
                | Op::Prepare(_)
                | Op::Decide(_)
                | Op::CoordinatorLost { .. }
                | Op::Disown(_)
                | Op::DeliveryDone { .. }
                | Op::DeliveryUnreachable { .. }
                | Op::EndSession { .. }
                | Op::EndDelegation { .. }
        )
    }
}

/// An effect of a step, for the shell to carry out. A replay of a log discards the effects and then delivers
/// [`crate::SlotState::open_deliveries`].
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer a client's mutation: every caller that waits for this token, if any.
    Reply {
        /// The mutation.
        token: peer::Token,
        /// Its answer, the same for each retry.
        outcome: Result<Reply, Error>,
    },
    /// Deliver a message to another slot, at least once, and report the outcome.
    Send {
        /// Names the delivery in the report.
        delivery: DeliveryId,
        /// The message.
        message: Delivery,
    },
    /// A directory has many entries: the server may spread it ([`Op::Spread`]). Said again with each
    /// further entry.
    Crowded {
        /// The directory.
        directory: InodeId,
    },
    /// Answer the peer whose command this was.
    PeerReply(Result<DeliveryAnswer, Error>),
    /// Notify a session that it has a lock for which it waited. A session that missed this asks again.
    LockGranted {
        /// Which session.
        session: SessionId,
        /// The file.
        inode: InodeId,
        /// The session's number for the wait.
        wait: u64,
        /// The present state of the file.
        file: locks::LockedFile,
    },
    /// Notify a session that all members of a barrier have arrived. A session that missed this asks again.
    BarrierPassed {
        /// Which session.
        session: SessionId,
        /// The session's number for the wait.
        wait: u64,
        /// Which round it was.
        round: u64,
    },
    /// Others see an inode of this slot differently from now on: each holder of a lease on it must be notified
    /// before the change is shown to any client.
    Changed {
        /// The inode.
        inode: InodeId,
        /// Names that were in it are gone or lead elsewhere.
        names: bool,
        /// The session that asked for it and need not be notified.
        knows: Option<SessionId>,
    },
    /// Whether the wait that was to end still existed.
    LockWaitEnded {
        /// It was.
        ended: bool,
    },
}

/// Names a delivery within its slot, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeliveryId(pub u64);

/// A pending message of one slot to another (or itself).
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// A part of an operation is to be held ready.
    Prepare(Box<peer::Prepare>),
    /// An operation is decided.
    Decide(peer::Decide),
    /// Which directories is a directory in?
    Ascend(peer::Ascend),
    /// A truncation.
    CutLane(peer::CutLane),
    /// A file is gone.
    DropLane(peer::DropLane),
    /// A file was closed after it grew.
    TrimLane(peer::TrimLane),
    /// A file was inline, and is no longer.
    FillLane(peer::FillLane),
}

numbered_variants! { Delivery:
    1 Prepare(body);
    2 Decide(body);
    3 Ascend(body);
    4 CutLane(body);
    5 DropLane(body);
    6 TrimLane(body);
    7 FillLane(body);
}

impl Delivery {
    /// The slot whose primary the message goes to.
    #[must_use]
    pub fn slot(&self) -> Slot {
        match self {
            Delivery::Prepare(message) => message.slot,
            Delivery::Decide(message) => message.slot,
            Delivery::Ascend(message) => message.inode.slot(),
            Delivery::CutLane(message) => message.slot,
            Delivery::DropLane(message) => message.slot,
            Delivery::TrimLane(message) => message.slot,
            Delivery::FillLane(message) => message.slot,
        }
    }
}

/// The answer to a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryAnswer {
    /// To `Prepare`.
    Prepared(peer::Prepared),
    /// To `Ascend`.
    Ascended(peer::Ascended),
    /// To everything else.
    Done,
}

numbered_variants! { DeliveryAnswer:
    1 Prepared(body);
    2 Ascended(body);
    3 Done;
}

impl DeliveryAnswer {
    /// The body of the reply on the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            DeliveryAnswer::Prepared(body) => encode_body(body),
            DeliveryAnswer::Ascended(body) => encode_body(body),
            DeliveryAnswer::Done => encode_body(&()),
        }
    }
}

/// The answer to a mutation.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// To `Create`, `CreateUnnamed`, `Open` and `OpenEntry`.
    Opened(Box<wire::Opened>),
    /// To `BeginPassthrough`.
    PassthroughBegun(wire::PassthroughBegun),
    /// To `CancelChange`.
    ChangeCancelled(wire::ChangeCancelled),
    /// To `SetAttributes`, `Truncate`, `Symlink`, `MakeNode`, `MakeDirectory` and `Link`.
    Attributes(Box<Attributes>),
    /// To `WriteInline`.
    WroteInline(inline::InlineWritten),
    /// To `Promote`.
    Promoted(inline::Promoted),
    /// To `Extend` and `FinishAppend`.
    Size(wire::SizeInfo),
    /// To `ReserveAppend`.
    Reserved(wire::AppendReserved),
    /// To `SetLock` and `CancelLock`.
    Locked(locks::LockAnswer),
    /// To `ArriveBarrier`.
    Barrier(coordination::BarrierAnswer),
    /// To `LeaveBarrier`.
    BarrierLeft(Box<coordination::BarrierLeft>),
    /// To `ChangeInlineCell`.
    InlineCell(coordination::InlineCellChanged),
    /// To `SetXattr`, `RemoveXattr`, `Close`, `RemoveDirectory`, `Unlink`, `Rename` and `SetLayout`.
    Done,
}

numbered_variants! { Reply:
    1 Opened(body);
    2 PassthroughBegun(body);
    3 ChangeCancelled(body);
    4 Attributes(body);
    5 WroteInline(body);
    6 Promoted(body);
    7 Size(body);
    8 Reserved(body);
    9 Locked(body);
    10 Barrier(body);
    11 BarrierLeft(body);
    12 InlineCell(body);
    13 Done;
}

impl Reply {
    /// Memory that it takes beside its place among others, about.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Reply::Opened(opened) => {
                let info = &opened.info;
                let named: usize = info.named.iter().map(|(name, bytes)| name.len() + bytes.len() + 48).sum();
                size_of::<wire::Opened>() + named + info.partitions.len() * size_of::<Slot>()
            }
            Reply::Attributes(_) => size_of::<Attributes>(),
            Reply::BarrierLeft(left) => {
                let missing = left.missing.len();
                missing * (size_of::<coordination::MissingMember>() + limits::BARRIER_HOST_BYTES_MAX)
            }
            _ => 0,
        }
    }

    /// The body of the reply on the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Opened(body) => encode_body(body),
            Reply::ChangeCancelled(body) => encode_body(body),
            Reply::PassthroughBegun(body) => encode_body(body),
            Reply::Attributes(body) => encode_body(body),
            Reply::WroteInline(body) => encode_body(body),
            Reply::Promoted(body) => encode_body(body),
            Reply::Size(body) => encode_body(body),
            Reply::Reserved(body) => encode_body(body),
            Reply::Locked(body) => encode_body(body),
            Reply::Barrier(body) => encode_body(body),
            Reply::BarrierLeft(body) => encode_body(body),
            Reply::InlineCell(body) => encode_body(body),
            Reply::Done => encode_body(&()),
        }
    }
}
