//! Chooses the servers for the bytes of a new file whose creator knows which machines will use them.

use ramlace_base::{InodeId, Name, Result, ServerId};
use ramlace_layout::{Part, choose_for_parts, choose_from, name_key};
use ramlace_wire::{Layout, LayoutHints};

use crate::Pool;

/// On which servers the bytes of a new file shall lie. An inline file's bytes are where its inode is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placing {
    /// On all, round robin, beginning at one that follows from its name.
    #[default]
    Usual,
    /// On those of this machine, if it has any that answer.
    Here,
    /// Round robin, beginning with this one, if it exists and answers.
    From(ServerId),
    /// Each part on one server of its machine, as far as possible; if none of these machines has any, as
    /// usual.
    Parts(Vec<Part>),
}

impl Placing {
    /// The layout, if the creator chooses it; `None` if the server of the inode shall choose it.
    pub(crate) fn layout(
        &self,
        pool: &Pool,
        (parent, name): (InodeId, &Name),
        hints: LayoutHints,
        unit_min: u64,
    ) -> Result<Option<Layout>> {
        let session = pool.session()?;
        let is_live = |id| session.server(id).is_ok_and(|server| !server.is_failing());
        let key = name_key(parent, name.as_bytes());
        // A server that chooses knows what the directory's files inherit; this client must ask.
        let hints = || pool.raw().info(parent).map(|directory| hints.or(directory.hints));
        let chosen = match self {
            Placing::Usual | Placing::Here => None,
            Placing::From(first) if !is_live(*first) => None,
            Placing::From(first) => {
                Some(choose_from(Some(*first), hints()?, &*session.map()?, is_live, key)?)
            }
            Placing::Parts(parts) => choose_for_parts(hints()?, &*session.map()?, is_live, parts, key)?,
        };
        Ok(chosen.map(|layout| Layout { stripe_unit: layout.stripe_unit.max(unit_min), ..layout }))
    }
}
