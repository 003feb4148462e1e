//! `publish` and `refresh`: the two verbs of shared memory between machines, for any program's files on a mount.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::Locator;
use ramlace_mount::REFRESH_ATTRIBUTE;
use serde_json::json;

use crate::failure::Done;
use crate::output::Output;

const PUBLISH_EXAMPLES: &str = "\
Examples:
  ramlace publish /mnt/pool/matrix.bin     what programs here have stored into mappings is there for all machines

The same as fsync or msync by the program itself. Written bytes (write, cp) are published already.";

const REFRESH_EXAMPLES: &str = "\
Examples:
  ramlace refresh /mnt/pool/matrix.bin     live mappings here show what others have published

The same as 'setfattr -n user.ramlace.refresh -v 1 FILE'. What this machine has stored and not published
yet is published first. A file that is opened again is fresh without it.";

/// Arguments of `publish`.
#[derive(clap::Args, Debug)]
#[command(after_help = PUBLISH_EXAMPLES)]
pub struct PublishArgs {
    /// Files on a mount
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `refresh`.
#[derive(clap::Args, Debug)]
#[command(after_help = REFRESH_EXAMPLES)]
pub struct RefreshArgs {
    /// Files on a mount
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Makes stores into mapped memory of this machine visible to others.
pub fn publish(args: &PublishArgs, output: &mut Output) -> Done {
    each(&args.files, "published", output, |path| {
        let file = File::open(path).map_err(|error| Error::from_io(&error, path.display()))?;
        file.sync_all().map_err(|error| Error::from_io(&error, format!("publishing {}", path.display())))
    })
}

/// Makes what others have published visible in mapped memory of this machine.
pub fn refresh(args: &RefreshArgs, output: &mut Output) -> Done {
    each(&args.files, "refreshed", output, |path| {
        // Reading the attribute does the same as setting it, and readers may.
        rustix::fs::getxattr(path, REFRESH_ATTRIBUTE, &mut [0u8; 16][..])
            .map(drop)
            .map_err(|errno| Error::from_io(&errno.into(), format!("refreshing {}", path.display())))
    })
}

fn each(files: &[PathBuf], done: &str, output: &mut Output, work: impl Fn(&Path) -> Result<()>) -> Done {
    for path in files {
        check_on_mount(path)?;
        work(path)?;
    }
    if output.json {
        let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
        return output.json(&json!({done: files}));
    }
    Ok(())
}

/// The file must lie on a mount of a pool: elsewhere the words would mean nothing.
fn check_on_mount(path: &Path) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    if Locator::looks_like(path.as_os_str().as_bytes()) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} is a place in a pool; name the file as it is called on a mount", path.display()),
        ));
    }
    let device = std::fs::metadata(path).map_err(|error| Error::from_io(&error, path.display()))?.dev();
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    if ramlace_mount::mounts()?.iter().any(|mount| mount.device == device) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("{} lies on no mount of a pool; 'ramlace mount DIR' makes one", path.display()),
    ))
}
