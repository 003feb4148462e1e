//! Content by which bytes in the wrong place are noticed: each page begins with its number.

use ramlace_base::{Error, ErrorKind, Result};

const PAGE_BYTES: usize = 4096;

/// Marks the pages of bytes that lie at `offset`, a multiple of the page.
pub fn mark(bytes: &mut [u8], offset: u64) {
    let first = offset / PAGE_BYTES as u64;
    for (index, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
        page[..8].copy_from_slice(&(first + index as u64).to_le_bytes());
    }
}

/// Says whether these bytes come from `offset`.
pub fn check(bytes: &[u8], offset: u64) -> Result<()> {
    let first = offset / PAGE_BYTES as u64;
    let wrong = bytes
        .chunks(PAGE_BYTES)
        .enumerate()
        .find(|(index, page)| page[..8] != (first + *index as u64).to_le_bytes());
    match wrong {
        None => Ok(()),
        Some((index, _)) => {
            let place = offset + (index * PAGE_BYTES) as u64;
            Err(Error::new(
                ErrorKind::Corrupt,
                format!("other bytes than were written came from offset {place}"),
            ))
        }
    }
}
