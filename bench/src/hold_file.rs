//! Holds a file of a tmpfs for another program, which opens it by the path that is printed.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use ramlace_base::{Error, Result};

use crate::args::Args;
use crate::region::{huge_file, small_page_file};

/// Prints a path below `/proc` and holds the file until standard input ends.
pub fn run(args: &Args) -> Result<()> {
    let (_root, file) = match args.small_pages {
        true => (None, small_page_file(args.bytes)?),
        false => huge_file(args.bytes).map(|(root, file)| (Some(root), file))?,
    };
    let tell = |error: std::io::Error| Error::from_io(&error, "holding a file");
    println!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    std::io::stdout().flush().map_err(tell)?;
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop).map_err(tell)
}
