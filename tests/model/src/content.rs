//! Bytes of a file, most of which may be zero.

use std::collections::BTreeMap;

/// Bytes of one page; pages that are absent are zeros.
const PAGE_BYTES: u64 = 4096;

/// A sequence of bytes with holes.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

/// Equal bytes are equal contents, whichever of them are holes.
impl PartialEq for Content {
    fn eq(&self, other: &Content) -> bool {
        let numbers = || self.pages.keys().chain(other.pages.keys());
        self.size == other.size && numbers().all(|number| self.page(*number) == other.page(*number))
    }
}

impl Content {
    /// How many bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Cuts, or adds zeros.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE_BYTES));
            if let Some(page) = self.pages.get_mut(&(size / PAGE_BYTES)) {
                page[(size % PAGE_BYTES) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// At most `length` bytes from `offset`, ending where the content ends.
    #[must_use]
    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(length as u64));
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset) as usize);
        let mut at = offset;
        while at < end {
            let (number, from) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let upto = (from as u64 + (end - at)).min(PAGE_BYTES) as usize;
            match self.pages.get(&number) {
                Some(page) => bytes.extend_from_slice(&page[from..upto]),
                None => bytes.resize(bytes.len() + upto - from, 0),
            }
            at += (upto - from) as u64;
        }
        bytes
    }

    /// Puts bytes in their place; the content ends behind them at the least.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let from = (at % PAGE_BYTES) as usize;
            let (part, behind) = rest.split_at(rest.len().min(PAGE_BYTES as usize - from));
            let page = self.pages.entry(at / PAGE_BYTES).or_insert_with(|| vec![0; PAGE_BYTES as usize]);
            page[from..from + part.len()].copy_from_slice(part);
            (at, rest) = (at + part.len() as u64, behind);
        }
        if !bytes.is_empty() {
            self.size = self.size.max(offset + bytes.len() as u64);
        }
    }

    fn page(&self, number: u64) -> &[u8] {
        static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        self.pages.get(&number).map_or(&ZEROS, |page| page)
    }
}
