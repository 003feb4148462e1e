//! The command line: a driver and its options.

use std::path::PathBuf;

use ramlace_base::{Error, ErrorKind, Result};

/// What a driver is told.
pub struct Args {
    /// Which driver.
    pub driver: String,
    /// Seconds instead of minutes: the numbers mean nothing.
    pub quick: bool,
    /// Processes of the pool's servers, whose CPU time is counted.
    pub pids: Vec<i32>,
    /// A directory for sockets.
    pub scratch: PathBuf,
    /// Size of the region of a raw server, or of a held file.
    pub bytes: usize,
    /// Only figures whose name contains this.
    pub only: String,
    /// Only the side with this name, for profilers; all of them when it is empty.
    pub side: String,
    /// Where the pool is mounted, or where `null-fuse` shall be.
    pub mount: PathBuf,
    /// Where the pool is mounted once more.
    pub other: PathBuf,
    /// Where `null-fuse` is mounted.
    pub null: PathBuf,
    /// Where the pool is mounted with `--passthrough`, where there is that.
    pub passthrough: Option<PathBuf>,
    /// For `hold-file`: 4 KiB pages instead of huge ones.
    pub small_pages: bool,
}

impl Args {
    /// Reads the words after the program's name.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Args> {
        let driver = words.next().ok_or_else(|| invalid("name a driver".into()))?;
        let mut args = Args {
            driver,
            quick: false,
            pids: Vec::new(),
            scratch: std::env::temp_dir(),
            bytes: 0,
            only: String::new(),
            side: String::new(),
            mount: PathBuf::new(),
            other: PathBuf::new(),
            null: PathBuf::new(),
            passthrough: None,
            small_pages: false,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => args.quick = true,
                "--small-pages" => args.small_pages = true,
                "--pids" => {
                    let value = value(&word, &mut words)?;
                    args.pids = value.split(',').map(|pid| number(&word, pid)).collect::<Result<_>>()?;
                }
                "--scratch" => args.scratch = value(&word, &mut words)?.into(),
                "--mount" => args.mount = value(&word, &mut words)?.into(),
                "--other" => args.other = value(&word, &mut words)?.into(),
                "--null" => args.null = value(&word, &mut words)?.into(),
                "--passthrough" => args.passthrough = Some(value(&word, &mut words)?.into()),
                "--bytes" => args.bytes = number(&word, &value(&word, &mut words)?)?,
                "--only" => args.only = value(&word, &mut words)?,
                "--side" => args.side = value(&word, &mut words)?,
                _ => return Err(invalid(format!("there is no option '{word}'"))),
            }
        }
        Ok(args)
    }

    /// Whether a figure is wanted.
    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }
}

fn value(word: &str, words: &mut impl Iterator<Item = String>) -> Result<String> {
    words.next().ok_or_else(|| invalid(format!("{word} needs a value")))
}

fn number<T: std::str::FromStr>(word: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| invalid(format!("{word} needs a number, not '{text}'")))
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, text)
}
