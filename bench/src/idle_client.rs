//! A client that is connected to every server and asks nothing.

use std::io::{Read, Write};

use ramlace_base::{Error, Result};

use crate::args::Args;
use crate::pool::connect;

/// Opens a session with all servers and holds it until standard input ends.
pub fn run(_: &Args) -> Result<()> {
    let pool = connect(false)?;
    pool.status()?;
    let tell = |error: std::io::Error| Error::from_io(&error, "waiting");
    println!("connected");
    std::io::stdout().flush().map_err(tell)?;
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop).map_err(tell)
}
