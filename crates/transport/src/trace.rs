//! `RAMLACE_LOG`: requests and answers of clients and servers, one line each on standard error. Each request
//! has a name that is the same at both ends: the first bytes of its session, a dot, and the call's number in
//! it. When it is off, an event costs a check of a flag.

use std::fmt;
use std::sync::Once;

use ramlace_wire::Header;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable that selects what to log: a level, or a list of `TARGET=LEVEL`.
pub const LOG_VARIABLE: &str = "RAMLACE_LOG";

static BEGUN: Once = Once::new();

/// Begins to log as `RAMLACE_LOG` says, once in a process; nothing when it is not set. A program that has its
/// own subscriber of `tracing` keeps it. An invalid value is reported, and nothing else is logged.
pub fn begin() {
    BEGUN.call_once(|| {
        let Some(wanted) = std::env::var("RAMLACE_LOG").ok().filter(|wanted| !wanted.is_empty()) else {
            return;
        };
        match wanted.parse::<Targets>() {
            Ok(targets) => {
                let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
                // A subscriber that is already there stays.
                let _ = tracing_subscriber::registry().with(lines).with(targets).try_init();
            }
            Err(error) => {
                eprintln!("ramlace: {LOG_VARIABLE}='{wanted}' cannot be read, so nothing is logged: {error}")
            }
        }
    });
}

/// A request's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestName {
    session: u32,
    call: u32,
}

impl RequestName {
    /// That of the request with this header.
    #[must_use]
    pub fn of(header: &Header) -> RequestName {
        RequestName { session: header.session.short(), call: header.call }
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:08x}.{}", self.session, self.call)
    }
}
