//! `publish` and `refresh`: the two verbs of shared memory between machines, for any program's files on a mount.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use ramlace_base::units::parse_bytes;
use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_mount::{REFRESH_ATTRIBUTE, publish_bytes};
use serde_json::json;

use crate::failure::Done;
use crate::output::Output;
use crate::place::on_mounts;

const PUBLISH_EXAMPLES: &str = "\
Examples:
  ramlace publish /mnt/pool/matrix.bin     what programs here have stored into mappings is there for all machines
  ramlace publish --offset 1GiB --length 8MiB /mnt/pool/matrix.bin

The same as fsync or msync by the program itself, and for some bytes as the ioctl RAMLACE_IOC_PUBLISH of ramlace.h.
Written bytes (write, cp) are published already.";

const REFRESH_EXAMPLES: &str = "\
Examples:
  ramlace refresh /mnt/pool/matrix.bin     live mappings here show what others have published
  ramlace refresh --offset 1GiB --length 8MiB /mnt/pool/matrix.bin

The same as 'setfattr -n user.ramlace.refresh -v 1 FILE', and 'user.ramlace.refresh.START.LENGTH' for some
bytes, or the ioctl RAMLACE_IOC_REFRESH of ramlace.h. What this machine has stored and not published yet is published first. A file that is opened again
is fresh without it.";

/// Arguments of `publish`.
#[derive(clap::Args, Debug)]
#[command(after_help = PUBLISH_EXAMPLES)]
pub struct PublishArgs {
    /// Files on a mount, or as they are called in the pool: then by each mount of it
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<OsString>,

    #[command(flatten)]
    pub bytes: Bytes,
}

/// Some bytes of each file.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Bytes {
    /// The first byte [default: that of the file]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub offset: Option<u64>,

    /// How many bytes [default: all that follow]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_bytes)]
    pub length: Option<u64>,
}

impl Bytes {
    /// `None`: the whole file.
    fn range(self) -> Result<Option<ByteRange>> {
        let (start, length) = match (self.offset, self.length) {
            (None, None) => return Ok(None),
            (start, None) => (start.unwrap_or(0), (i64::MAX as u64).saturating_sub(start.unwrap_or(0))),
            (start, Some(length)) => (start.unwrap_or(0), length),
        };
        let range = ByteRange::at(start, length).filter(|range| range.end <= i64::MAX as u64);
        let beyond =
            || Error::new(ErrorKind::Invalid, format!("{length} bytes from {start} on are beyond any file"));
        range.map(Some).ok_or_else(beyond)
    }
}

/// Arguments of `refresh`.
#[derive(clap::Args, Debug)]
#[command(after_help = REFRESH_EXAMPLES)]
pub struct RefreshArgs {
    /// Files on a mount, or as they are called in the pool: then by each mount of it
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<OsString>,

    #[command(flatten)]
    pub bytes: Bytes,
}

/// Makes stores into mapped memory of this machine visible to others.
pub fn publish(args: &PublishArgs, named: Option<&str>, output: &mut Output) -> Done {
    let bytes = args.bytes.range()?;
    each(&args.files, named, "published", output, |path| {
        let file = File::open(path).map_err(|error| Error::from_io(&error, path.display()))?;
        match bytes {
            None => file
                .sync_all()
                .map_err(|error| Error::from_io(&error, format!("publishing {}", path.display()))),
            Some(range) => publish_bytes(&file, range).map_err(|error| error.context(path.display())),
        }
    })
}

/// Makes what others have published visible in mapped memory of this machine.
pub fn refresh(args: &RefreshArgs, named: Option<&str>, output: &mut Output) -> Done {
    let attribute = match args.bytes.range()? {
        None => REFRESH_ATTRIBUTE.to_owned(),
        Some(range) => format!("{REFRESH_ATTRIBUTE}.{}.{}", range.start, range.length()),
    };
    each(&args.files, named, "refreshed", output, |path| {
        // Reading the attribute does the same as setting it, and readers may.
        rustix::fs::getxattr(path, attribute.as_str(), &mut [0u8; 16][..])
            .map(drop)
            .map_err(|errno| Error::from_io(&errno.into(), format!("refreshing {}", path.display())))
    })
}

fn each(
    files: &[OsString],
    named: Option<&str>,
    done: &str,
    output: &mut Output,
    work: impl Fn(&Path) -> Result<()>,
) -> Done {
    for file in files {
        on_mounts(file, named)?.iter().try_for_each(|path| work(path))?;
    }
    if output.json {
        let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
        return output.json(&json!({done: files}));
    }
    Ok(())
}
