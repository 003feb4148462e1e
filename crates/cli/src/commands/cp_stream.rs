//! `cp` from and to pipes, devices, standard input and output.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_client::{File as PoolFile, NewMode, OpenOptions, Pool};
use ramlace_copy::{CopyOptions, Kind, Side, close, layout_is_fixed, partial};
use serde_json::json;

use super::cat::send;
use crate::failure::{Done, Failure};
use crate::output::Output;
use crate::place::Place;
use crate::progress::Progress;
use crate::streams::{Stdout, pump, read_full, stdin};

/// Copies a file of the pool to standard output, a pipe or a device.
pub fn out(pool: &Pool, path: &[u8], to: &Place, output: &mut Output) -> Done {
    let began = Instant::now();
    let file = pool.open(path, &OpenOptions::reading())?;
    let size = file.size()?;
    let mut progress = Progress::new(output.json);
    let mut done = 0;
    let mut count = |bytes: &[u8]| {
        done += bytes.len() as u64;
        progress.update(done, Some(size));
    };
    match to {
        Place::Local(path) => {
            let doing = |error| Error::from_io(&error, format!("writing {}", path.display()));
            let mut device = File::options().write(true).open(path).map_err(doing)?;
            send(&file, |bytes| {
                count(bytes);
                device.write_all(bytes).map_err(|error| Failure::Error(doing(error)))
            })?;
            drop(progress);
            close(device).map_err(doing)?;
            tell(done, began, output)
        }
        _ => {
            let mut stdout = Stdout::open()?;
            send(&file, |bytes| {
                count(bytes);
                stdout.write(bytes)
            })?;
            stdout.close()
        }
    }
}

/// Copies standard input, a pipe or a device into a file of the pool.
pub fn into(from: &Place, pool: &Pool, path: &[u8], options: &CopyOptions, output: &mut Output) -> Done {
    let began = Instant::now();
    let (mut source, shown) = open_source(from)?;
    let to = Side::Pool(pool.clone(), path.to_vec());
    let (file, fresh) = open_destination(pool, path, &to, &shown, options)?;
    let mut progress = Progress::new(output.json);
    let mut at = 0;
    let copied = pump(
        |buffer| read_full(&mut source, buffer, &shown),
        |bytes| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let count = file.write_at(rest, at)?;
                if count == 0 {
                    return Err(Error::new(ErrorKind::NoSpace, "nothing more can be written").into());
                }
                at += count as u64;
                rest = &rest[count..];
            }
            progress.update(at, None);
            Ok(())
        },
    );
    drop(progress);
    match copied {
        Ok(()) => {
            file.close()?;
            tell(at, began, output)
        }
        Err(Failure::Error(error)) => {
            drop(file);
            Err(partial(&error, &to, fresh, at, None).into())
        }
        Err(other) => Err(other),
    }
}

/// The file to be written, empty, and whether it was not there before. `shown`: what is copied into it.
fn open_destination(
    pool: &Pool,
    path: &[u8],
    to: &Side,
    shown: &str,
    options: &CopyOptions,
) -> Result<(PoolFile, bool)> {
    let open = |exclusive| {
        let wanted = OpenOptions {
            write: true,
            create: true,
            exclusive,
            truncate: !exclusive,
            mode: NewMode { mode: 0o666, umask: options.umask },
            hints: options.hints,
            ..OpenOptions::default()
        };
        pool.open(path, &wanted)
    };
    match to.look(true)? {
        Some(found) if found.kind == Kind::Directory => {
            let text =
                format!("{} is a directory; name the file in it that {shown} shall become", to.shown());
            return Err(Error::new(ErrorKind::IsDirectory, text));
        }
        Some(_) if options.hints != Default::default() => return Err(layout_is_fixed(to)),
        Some(_) => {}
        None => match open(true) {
            // A link that leads nowhere: the file is made where it points, and the link is not ours to remove.
            Err(error) if error.kind() == ErrorKind::Exists => {}
            opened => return opened.map(|file| (file, true)),
        },
    }
    open(false).map(|file| (file, false))
}

fn open_source(from: &Place) -> Result<(File, String)> {
    match from {
        Place::Local(path) => {
            let shown = path.display().to_string();
            let file =
                File::open(path).map_err(|error| Error::from_io(&error, format!("opening {shown}")))?;
            Ok((file, shown))
        }
        _ => Ok((stdin()?, "standard input".to_owned())),
    }
}

fn tell(bytes: u64, began: Instant, output: &mut Output) -> Done {
    if output.json {
        let seconds = began.elapsed().as_secs_f64();
        return output
            .json(&json!({"files": 1, "bytes": bytes, "errors": 0, "given_up": false, "seconds": seconds}));
    }
    Ok(())
}
