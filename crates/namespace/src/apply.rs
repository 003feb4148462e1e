//! The one door through which a slot changes: each command goes to the operation that it names.

use ramlace_wire::namespace::GivenUp;
use ramlace_wire::peer::Token;

use crate::command::{Command, Effect, Op, Origin, Reply, Room};
use crate::state::session::{Cached, given_up};
use crate::state::{Caller, SlotState, Step, shown};
use crate::touched::tell_changes;

impl SlotState {
    /// Takes one step: the only way this state changes.
    ///
    /// Panics when the command belongs to another slot, or its origin does not fit its operation:
    /// those are bugs of the caller.
    pub fn apply(&mut self, command: &Command) -> Vec<Effect> {
        self.apply_within(command, Room::ForInodes)
    }

    /// The same, for a server that may have no room for another inode: then what would make one is
    /// refused with `NoSpace`. The room belongs to the command, and is logged with it.
    pub fn apply_within(&mut self, command: &Command, room: Room) -> Vec<Effect> {
        self.full = room == Room::None;
        let effects = self.step(command);
        self.full = false;
        effects
    }

    fn step(&mut self, command: &Command) -> Vec<Effect> {
        let mut effects = Vec::new();
        let now = command.now;
        match (&command.origin, &command.op) {
            (Origin::Client { session, sequence, acknowledged_below, who, on_behalf }, op) => {
                let (session, sequence) = (*session, *sequence);
                let caller = Caller { token: Token { session, sequence }, who, on_behalf: *on_behalf, now };
                let session_state = self.sessions.entry(session).or_default();
                match session_state.admit(session, sequence, *acknowledged_below) {
                    Ok(None) => {
                        let step = self.client_step(caller, op, &mut effects);
                        self.conclude(caller.token, step, &mut effects);
                    }
                    Ok(Some(Cached::Waiting)) => {}
                    Ok(Some(Cached::GivenUp)) => {
                        effects.push(Effect::Reply { token: caller.token, outcome: Err(given_up()) });
                    }
                    Ok(Some(Cached::Answered(outcome))) => {
                        effects.push(Effect::Reply { token: caller.token, outcome: shown(outcome.clone()) });
                    }
                    Err(refusal) => {
                        effects.push(Effect::Reply { token: caller.token, outcome: Err(refusal) });
                    }
                }
            }
            (Origin::Peer, op) => {
                let answer = self.peer_step(op, now, &mut effects);
                self.follow_up(now, &mut effects);
                effects.push(Effect::PeerReply(answer));
            }
            (Origin::Server, Op::DeliveryDone { delivery, result }) => {
                self.delivery_done(*delivery, result, now, &mut effects);
            }
            (Origin::Server, Op::DeliveryUnreachable { delivery }) => {
                self.delivery_unreachable(*delivery, now, &mut effects);
            }
            (Origin::Server, Op::CoordinatorLost { coordinator, began }) => {
                self.coordinator_lost(*coordinator, *began, now, &mut effects);
            }
            (Origin::Server, Op::Disown(disowned)) => self.disown(disowned, now, &mut effects),
            (Origin::Server, Op::EndSession { session }) => self.end_session(*session, now, &mut effects),
            (Origin::Server, Op::Spread { directory, partitions }) => {
                self.spread(*directory, partitions, now, &mut effects);
            }
            (Origin::Server, Op::BeginInLanes { inode, epoch, .. }) => self.begin_in_lanes(*inode, *epoch),
            (Origin::Server, Op::Delegate { session }) => self.delegate(*session),
            (Origin::Server, Op::EndDelegation { number }) => self.end_delegation(*number),
            (Origin::Server, Op::EndLockWait(request)) => self.end_lock_wait(*request, &mut effects),
            (Origin::Server, op) => panic!("{op:?} does not come from the server"),
        }
        self.follow_up(now, &mut effects);
        tell_changes(&mut self.inodes, self.slot, command, &mut effects);
        effects
    }

    fn client_step(&mut self, caller: Caller, op: &Op, effects: &mut Vec<Effect>) -> Step {
        self.check_not_going(op)?;
        match op {
            Op::Create(request) => self.create(caller, request),
            Op::Open(request) => self.open(caller, *request),
            Op::GiveUp(request) => {
                let opened = self.session_mut(caller).give_up(request.sequence);
                Ok(Some(Reply::GivenUp(GivenUp { opened })))
            }
            Op::OpenEntry(request) => self.open_entry(caller, request),
            Op::HandOver(request) => self.hand_over(caller, *request, effects),
            Op::Close(request) => self.close(caller, *request, effects),
            Op::SetAttributes(request) => self.set_attributes(caller, *request, effects),
            Op::Truncate(request) => self.truncate(caller, *request, effects),
            Op::Symlink(request) => self.symlink(caller, request),
            Op::MakeNode(request) => self.make_node(caller, request),
            Op::CreateUnnamed(request) => self.create_unnamed(caller, request),
            Op::SetXattr(request) => self.set_xattr(caller, request, effects),
            Op::RemoveXattr(request) => self.remove_xattr(caller, request, effects),
            Op::MakeDirectory { request, homes } => self.make_directory(caller, request, homes, effects),
            Op::RemoveDirectory(request) => self.remove_directory(caller, request, effects),
            Op::Unlink(request) => self.unlink(caller, request, effects),
            Op::Rename(request) => self.rename(caller, request, effects),
            Op::Link(request) => self.link(caller, request, effects),
            Op::WriteInline { request, room } => self.write_inline(caller, request, *room),
            Op::Promote { request, epoch } => self.promote(caller, *request, *epoch, effects),
            Op::Extend(request) => self.extend(caller, *request),
            Op::NoteMemory(request) => self.note_memory(caller, *request),
            Op::ReserveAppend(request) => self.reserve_append(caller, *request),
            Op::FinishAppend(request) => self.finish_append(caller, *request),
            Op::SetLayout(request) => self.set_layout(caller, *request, effects),
            Op::SetLock(request) => self.set_lock(caller, *request, effects),
            Op::CancelLock(request) => self.cancel_lock(caller, *request, effects),
            Op::ArriveBarrier { request, room } => self.arrive_barrier(caller, request, *room, effects),
            Op::LeaveBarrier(request) => self.leave_barrier(caller, request),
            Op::ChangeInlineCell { request, room } => self.change_inline_cell(caller, *request, *room),
            other => panic!("{other:?} does not come from a client"),
        }
    }
}
