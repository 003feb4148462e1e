//! A whole pool in one thread, from one seed: the values of slots that servers run ([`ramlace_slot`]), the deliveries between
//! them, clients that repeat what they were not answered, a network that delays, loses and repeats, and servers that
//! die at any moment and begin again from snapshots and logs. Time is a number.
//!
//! What holds: a client's names and bytes are in the end what it was told, whatever was lost or came twice; a server that
//! begins again is what it was; when everybody has left, nothing is owed, held or forgotten, and `ramlace check` finds
//! nothing. A [`Bug`] planted in what a server or a client owes the pure crates must be found.
//!
//! The same seed gives the same run.
#![forbid(unsafe_code)]

mod client;
mod dice;
mod finish;
mod server;
mod world;

pub use world::{Bug, World};

/// Runs a seed to its end; what does not hold.
///
/// # Errors
/// The first thing that is not as it must be, and when.
pub fn run(seed: u64, bug: Bug) -> Result<Tally, String> {
    let mut world = World::new(seed, bug);
    world.run().and_then(|()| world.finish()).map_err(|what| format!("at {}: {what}", world.now()))?;
    Ok(world.tally())
}

/// How much has happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Things that arrived, or that somebody's clock did.
    pub events: u64,
    /// Operations of clients that were answered.
    pub answered: u64,
    /// Messages that were lost.
    pub lost: u64,
    /// Messages that came twice.
    pub repeated: u64,
    /// Servers that died.
    pub deaths: u64,
    /// Records that a life has read again.
    pub replayed: u64,
}
