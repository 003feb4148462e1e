//! Which inodes a step has changed for others: the changes of which holders of leases must be notified are
//! found here, in one place, and not by each operation for itself.

use ramlace_base::{InodeId, SessionId, Slot};
use ramlace_wire::FileKind;
use ramlace_wire::namespace::FinishAppend;

use crate::command::{Command, Effect, Op, Origin, Reply};
use crate::state::inodes::Inodes;

/// Reports which inodes a step has changed for others, and which session knows without being notified: the
/// one that requested the step, about the inodes that its request names.
pub(crate) fn tell_changes(inodes: &mut Inodes, slot: Slot, command: &Command, effects: &mut Vec<Effect>) {
    let changed = inodes.take_changed(slot).into_iter();
    let changes: Vec<Effect> = changed
        .map(|(inode, kind, names)| Effect::Changed {
            inode,
            names,
            knows: who_knows(command, effects, inode, kind),
        })
        .collect();
    // First of all: the answers among the effects show it.
    effects.splice(..0, changes);
}

fn who_knows(command: &Command, effects: &[Effect], inode: InodeId, kind: FileKind) -> Option<SessionId> {
    match (&command.origin, &command.op) {
        // A mount's kernel does not update its copy of the renamed inode after a rename.
        (Origin::Client { session, .. }, Op::Rename(request)) => {
            (inode == request.parent || inode == request.new_parent).then_some(*session)
        }
        // These publish what others have appended behind bytes that are given back: nobody knows of it.
        (
            Origin::Client { .. },
            Op::FinishAppend(FinishAppend { failed: true, .. }) | Op::CancelChange(_),
        ) => None,
        (Origin::Client { session, .. }, _) => Some(*session),
        (Origin::Server, Op::BeginLane { by, .. }) => Some(*by),
        // An operation ends for which another slot was waited: its directories are named by its request, and so is the
        // file whose bytes have gone to its lanes.
        (Origin::Server, Op::DeliveryDone { .. }) => effects.iter().find_map(|effect| match effect {
            Effect::Reply { token, outcome: Ok(reply) } => {
                let is_named = kind == FileKind::Directory || matches!(reply, Reply::Promoted(_));
                is_named.then_some(token.session)
            }
            _ => None,
        }),
        _ => None,
    }
}
