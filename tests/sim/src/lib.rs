//! Simulations, each in one thread and from one seed; time is a number. What decides is the product's own code; what drives it, and what goes wrong, is the
//! simulator's. The same seed gives the same run.
//!
//! * [`run`]: a whole pool: the values of slots that servers run ([`ramlace_slot`]), the deliveries between them, clients that repeat what
//!   they were not answered, a network that delays, loses and repeats, and servers that die at any moment and begin again from snapshots
//!   and logs. A client's names and bytes are in the end what it was told, whatever was lost or came twice; a server that begins again is
//!   what it was; when everybody has left, nothing is owed, held or forgotten, and `ramlace check` finds nothing.
//! * [`run_leases`]: who believes what until when, and when sessions end.
//! * [`run_owing`]: what clients owe servers, and when it is told.
//! * [`run_calls`]: what clients repeat and cancel, how long that takes, and that it has one effect or none.
//! * [`run_losing`]: servers that crash with their store and without.
//! * [`run_behind`]: slots that are delegated, and a mount that is stopped.
//! * [`run_transfers`]: how long large transfers may stand still.
//! * [`run_stores`]: stores into mapped files of which only their times tell.
//!
//! A bug planted in what a server or a client owes the code that decides must be found.
#![forbid(unsafe_code)]

mod agenda;
mod behind;
mod calls;
mod client;
mod dice;
mod finish;
mod leases;
mod losing;
mod owing;
mod server;
mod stores;
mod tally;
mod transfers;
mod world;

pub use behind::{BehindBug, BehindTally, run_behind};
pub use calls::{CallBug, CallTally, run_calls};
pub use leases::{LeaseBug, LeaseTally, run_leases};
pub use losing::{LossBug, LossTally, run_losing};
pub use owing::{OwingBug, OwingTally, run_owing};
pub use stores::{StoreBug, StoreTally, run_stores};
pub use transfers::{TransferBug, TransferTally, run_transfers};
pub use world::{Bug, World};

use tally::tally;

/// Runs a seed to its end; what does not hold.
///
/// # Errors
/// The first thing that is not as it must be, and when.
pub fn run(seed: u64, bug: Bug) -> Result<Tally, String> {
    let mut world = World::new(seed, bug);
    world.run().and_then(|()| world.finish()).map_err(|what| format!("at {}: {what}", world.now()))?;
    Ok(world.tally())
}

tally! {
    /// How much has happened.
    Tally {
        /// Things that arrived, or that somebody's clock did.
        events,
        /// Operations of clients that were answered.
        answered,
        /// Messages that were lost.
        lost,
        /// Messages that came twice.
        repeated,
        /// Servers that died.
        deaths,
        /// Records that a life has read again.
        replayed,
    }
}
