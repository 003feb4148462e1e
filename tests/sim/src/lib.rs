//! Simulations, each in one thread and from one seed; time is a number. What decides is the product's own code; what drives it, and what goes wrong, is the
//! simulator's. The same seed gives the same run.
//!
//! * [`run`]: a whole pool, with everything that goes wrong in it at once.
//! * [`run_outbox`]: the messages that are pending for servers, and when they are sent.
//! * [`run_calls`]: what clients repeat and cancel, how long that takes, and that it has one effect or none.
//! * [`run_losing`]: servers that crash with their store and without.
//! * [`run_behind`]: slots that are delegated, and a mount that is stopped.
//! * [`run_transfers`]: how long large transfers may stand still.
//! * [`run_stores`]: stores into mapped files of which only their times tell.
//!
//! The pool has slots, deliveries, leases, sessions that end, the product's retries and outbox, crashes, lost lanes and the network; what it does not have
//! yet is below: slots that move and whose server is removed, the coordinator, files of several lanes, other messages of the outbox, delegations, and
//! transfers that take time. Each of these runs in a world of its own, where its times can be checked closely.
//!
//! Of a server's process the pure crates are here, its sessions and its delegations. How it admits requests, holds answers at the gate and
//! delivers is written here again (`pool/gate.rs`, `pool/server.rs`, `pool/delivering.rs`), and the bytes of cells are not kept.
//!
//! A bug planted in what a server or a client must do for the code that decides must be found.
#![forbid(unsafe_code)]

mod agenda;
mod behind;
mod calling;
mod calls;
mod dice;
mod losing;
mod outbox;
mod pool;
mod stores;
mod tally;
mod transfers;

pub use behind::{BehindBug, BehindTally, run_behind};
pub use calls::{CallBug, CallTally, run_calls};
pub use losing::{LossBug, LossTally, run_losing};
pub use outbox::{OutboxBug, OutboxTally, run_outbox};
pub use pool::{Bug, Tally, run};
pub use stores::{StoreBug, StoreTally, run_stores};
pub use transfers::{TransferBug, TransferTally, run_transfers};
