//! The check of a pool: whether what its servers hold fits together, and what can be mended.
//!
//! Facts come from servers, page by page, in the messages of `wire::check`; what one slot can find out alone
//! (`namespace`'s `facts`) comes with them, and what mounts have lost comes from the caller. [`check_pool`]
//! reads them through [`Servers`] and hands them to [`Check`], which compares slots, lanes and books with each
//! other; what it finds goes to the caller as [`Checked`]. [`check_and_repair`] has the servers mend what they
//! can, which decide by themselves, and checks again. Sentences and JSON are the command's.
//!
//! From below: `kinds` and `findings` are the vocabulary; [`Check`] and the files in `check/` are one scan; `reading` brings the
//! scan its pages; `scans` repeats it until operations under way have ended; `repair` asks servers to mend.
//!
//! What the shell must provide: [`Servers`], that is how servers are asked, and how time passes between two
//! scans.
//!
//! Invariant: `check` does no I/O, reads no clock, and reports only what every scan has found; a program that
//! only uses a pool links nothing of it.
#![forbid(unsafe_code)]
// Pure: this crate's `clippy.toml` says what may not be called or used here.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod check;
mod findings;
mod kinds;
mod reading;
mod repair;
mod scans;
mod servers;

pub use check::Check;
pub use findings::{CheckCounts, Checked, FINDINGS_MAX, Finding};
pub use kinds::FindingKind;
pub use repair::{Repaired, check_and_repair};
pub use scans::check_pool;
pub use servers::{LostStores, Servers};
