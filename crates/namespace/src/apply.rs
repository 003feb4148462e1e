//! The one door through which a slot changes: each command goes to the operation that it names.

use ramlace_wire::namespace::{CancelChange, ChangeCancelled};
use ramlace_wire::peer::Token;

use crate::command::{Command, Effect, Op, Origin, Reply, Room, asked_by_clients};
use crate::state::session::{Cached, Undo, cancelled};
use crate::state::{Caller, SlotState, Step, shown};
use crate::touched::tell_changes;

impl SlotState {
    /// Applies one command: the only way this state changes.
    ///
    /// Panics when the command belongs to another slot, or its origin does not fit its operation: those are
    /// bugs of the caller.
    pub fn apply(&mut self, command: &Command) -> Vec<Effect> {
        self.apply_within(command, Room::ForInodes)
    }

    /// The same, for a server that may have no room for another inode: then a command that would create one
    /// is refused with `NoSpace`. The room belongs to the command, and is logged with it.
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
                    Ok(Some(Cached::Cancelled)) => {
                        effects.push(Effect::Reply { token: caller.token, outcome: Err(cancelled()) });
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
            (Origin::Server, Op::BeginLane { lane, by, epoch }) => self.begin_lane(*lane, *by, *epoch),
            (Origin::Server, Op::Delegate { session }) => self.delegate(*session),
            (Origin::Server, Op::EndDelegation { number, acknowledged_below }) => {
                self.end_delegation(*number, *acknowledged_below);
            }
            (Origin::Server, Op::EndLockWait(request)) => self.end_lock_wait(*request, &mut effects),
            (Origin::Server, op) => panic!("{op:?} does not come from the server"),
        }
        self.follow_up(now, &mut effects);
        tell_changes(&mut self.inodes, self.slot, command, &mut effects);
        effects
    }

    fn client_step(&mut self, caller: Caller, op: &Op, effects: &mut Vec<Effect>) -> Step {
        self.check_not_going(op)?;
        macro_rules! step {
            (($slot:ident, $caller:ident, $request:ident, $effects:ident) $($name:ident: $step:expr;)*) => {{
                let ($slot, $caller, $effects) = (self, caller, effects);
                match op {
                    $(Op::$name($request) => $step,)*
                    // With what the server has added.
                    Op::MakeDirectory { request, homes } => $slot.make_directory($caller, request, homes, $effects),
                    Op::WriteInline { request, room } => $slot.write_inline($caller, request, *room),
                    Op::Promote { request, epoch } => $slot.promote($caller, *request, *epoch, $effects),
                    Op::ArriveBarrier { request, room } => {
                        $slot.arrive_barrier($caller, request, *room, $effects)
                    }
                    Op::ChangeInlineCell { request, room } => {
                        $slot.change_inline_cell($caller, *request, *room)
                    }
                    Op::EndLockWait(_)
                    | Op::Prepare(_)
                    | Op::Decide(_)
                    | Op::DeliveryDone { .. }
                    | Op::DeliveryUnreachable { .. }
                    | Op::CoordinatorLost { .. }
                    | Op::Spread { .. }
                    | Op::EndSession { .. }
                    | Op::BeginLane { .. }
                    | Op::Disown(_)
                    | Op::Delegate { .. }
                    | Op::EndDelegation { .. } => panic!("{op:?} does not come from a client"),
                }
            }};
        }
        asked_by_clients!(step)
    }

    fn cancel_change(&mut self, caller: Caller, request: CancelChange, effects: &mut Vec<Effect>) -> Step {
        let opened = match self.session_mut(caller).cancel(request.sequence) {
            Undo::Nothing => None,
            // Only the session knows whether it has it open otherwise.
            Undo::Open(inode) => Some(inode),
            Undo::Reservation(reserved) => {
                self.give_reservation_back(caller, reserved, effects);
                None
            }
        };
        Ok(Some(Reply::ChangeCancelled(ChangeCancelled { opened })))
    }
}
