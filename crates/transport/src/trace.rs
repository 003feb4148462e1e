//! `RAMLACE_LOG`: what clients and servers ask and answer, one line each on standard error. Each request has a name that is
//! the same at both ends: the first bytes of its session, a dot, and the call's number in it. Off, an event costs a look at
//! a flag.

use std::fmt;
use std::sync::Once;

use ramlace_wire::Header;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable that says what to tell: a level, or a list of `TARGET=LEVEL`.
pub const LOG_VARIABLE: &str = "RAMLACE_LOG";

static BEGUN: Once = Once::new();

/// Begins to tell what `RAMLACE_LOG` asks for, once in a process; nothing when it is not set. A program that has
/// its own subscriber of `tracing` keeps it. A value that cannot be read is told, and nothing else is.
pub fn begin() {
    BEGUN.call_once(|| {
        let Some(wanted) = std::env::var("RAMLACE_LOG").ok().filter(|wanted| !wanted.is_empty()) else {
            return;
        };
        match wanted.parse::<Targets>() {
            Ok(targets) => {
                let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
                // Somebody else's stays.
                let _ = tracing_subscriber::registry().with(lines).with(targets).try_init();
            }
            Err(error) => {
                eprintln!("ramlace: {LOG_VARIABLE}='{wanted}' cannot be read, so nothing is told: {error}")
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
