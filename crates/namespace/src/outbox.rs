//! Messages that a slot owes to others: the only way slots talk.

use std::collections::BTreeMap;

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind, Result, limits};
use serde::{Deserialize, Serialize};

use crate::command::{Effect, Errand, ErrandId};

/// Open errands, oldest first. An errand leaves when it is answered, or no longer owed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outbox {
    /// Errands ever sent.
    sent: u64,
    open: BTreeMap<ErrandId, Errand>,
}

impl Outbox {
    pub(crate) fn send(&mut self, message: Errand, effects: &mut Vec<Effect>) -> ErrandId {
        self.sent += 1;
        let errand = ErrandId(self.sent);
        self.open.insert(errand, message.clone());
        effects.push(Effect::Send { errand, message });
        errand
    }

    pub(crate) fn get(&self, errand: ErrandId) -> Option<&Errand> {
        self.open.get(&errand)
    }

    pub(crate) fn remove(&mut self, errand: ErrandId) {
        self.open.remove(&errand);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ErrandId, &Errand)> {
        self.open.iter().map(|(errand, message)| (*errand, message))
    }

    /// Refuses an operation that would owe `more` messages when too many are open already.
    pub(crate) fn check_room(&self, more: u16) -> Result<()> {
        if self.open.len() + usize::from(more) > limits::ERRANDS_PER_SLOT_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{} not delivered to servers that are down; see `ramlace status`",
                    count(self.open.len() as u64, "message")
                ),
            ));
        }
        Ok(())
    }
}
