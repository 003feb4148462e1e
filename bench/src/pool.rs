//! The pool that is measured, and files in it.

use ramlace_base::Result;
use ramlace_client::{ConnectOptions, File, OpenOptions, Pool};
use ramlace_wire::LayoutHints;

use crate::pattern;

/// A session with this user's default pool: over Unix sockets and mappings, or over TCP alone.
pub fn connect(local: bool) -> Result<Pool> {
    Pool::connect(&options(local))
}

/// How the bench connects.
pub fn options(local: bool) -> ConnectOptions {
    ConnectOptions { local, label: "ramlace-bench".into(), ..ConnectOptions::default() }
}

/// A marked file of `bytes` bytes on `width` servers.
pub fn filled_file(pool: &Pool, path: &str, width: u16, bytes: usize, buffer: &mut [u8]) -> Result<File> {
    let hints = LayoutHints { width: Some(width), ..LayoutHints::default() };
    let file = pool.open(path, &OpenOptions { hints, truncate: true, ..OpenOptions::creating() })?;
    file.allocate(bytes as u64)?;
    write_marked(&file, bytes, buffer)?;
    Ok(file)
}

/// Writes the marks that [`pattern::check`] looks for.
pub fn write_marked(file: &File, bytes: usize, buffer: &mut [u8]) -> Result<()> {
    for offset in (0..bytes).step_by(buffer.len()) {
        let part = buffer.len().min(bytes - offset);
        pattern::mark(&mut buffer[..part], offset as u64);
        write_all(file, &buffer[..part], offset as u64)?;
    }
    Ok(())
}

/// A short write means that the pool is full: the next one says so.
pub fn write_all(file: &File, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = file.write_at(bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}
