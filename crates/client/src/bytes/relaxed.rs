//! One open file in relaxed mode: small reads are answered from this process's cache, without a message and
//! without a lease, until a refresh. So no other client waits for it, and it sees only its own changes.
//!
//! Before anything of a lane is read its number is taken, once until the next refresh. So a refresh compares
//! numbers to find what has changed; what has not is kept and moves no byte. Inline bytes have no number, and
//! are read anew.

use std::sync::Arc;

use ramlace_base::{ByteRange, Error, ErrorKind, Result};
use ramlace_wire::Mode;

use crate::bytes::blocks::BLOCK_BYTES;
use crate::bytes::file::File;
use crate::bytes::keeping::RelaxedReads;
use crate::bytes::lane_numbers::LaneNumbers;
use crate::bytes::memory::Memory;

/// Until this is dropped, this open file changes bytes; afterwards it reads them anew.
pub(crate) struct Changing<'a> {
    file: &'a File,
    range: ByteRange,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(kept) = self.file.relaxed.get() {
            kept.drop_range(self.range);
        }
    }
}

impl File {
    /// Makes what others have changed and published of a range visible to reads of this open file. Useful
    /// only in relaxed mode ([`crate::OpenOptions::sharing`]): in other modes reads ask the servers. What has
    /// not changed is kept.
    ///
    /// Errors: the cached bytes of the range are then still cached.
    pub fn refresh_range(&self, range: ByteRange) -> Result<()> {
        let Some(kept) = self.relaxed.get() else { return Ok(()) };
        let mut parts = vec![kept.begin_refresh(range)];
        // Bisects the range as long as something of it has changed.
        while let Some(mut part) = parts.pop() {
            let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else { continue };
            let span = ByteRange { start: first.start, end: last.end };
            let has_changed = match oldest(&part) {
                Some(numbers) => self.has_changed(span, &numbers)?,
                None => true,
            };
            match part.len() {
                _ if !has_changed => {}
                1 => kept.drop_range(span),
                blocks => {
                    parts.push(part.split_off(blocks / 2));
                    parts.push(part);
                }
            }
        }
        Ok(())
    }

    /// Whether a mapping or a copy in memory may stand for this open file: in strict mode others would see
    /// stores too late.
    ///
    /// Errors: `Unsupported`, then.
    pub fn check_may_be_memory(&self) -> Result<()> {
        if self.sharing() != Mode::Strict {
            return Ok(());
        }
        let text = "it is open in strict mode, and what is stored into memory of this process others see later; \
                    read and write it, or open it in another mode";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Drops the cached bytes of a range for this open file: the program has changed them by other means.
    pub fn forget_kept(&self, range: ByteRange) {
        drop(self.changing(range));
    }

    /// This open file is about to change bytes.
    pub(crate) fn changing(&self, range: ByteRange) -> Option<Changing<'_>> {
        (self.sharing() == Mode::Relaxed).then_some(Changing { file: self, range })
    }

    /// Reads from the cache, or reads a block and caches it. `None`: such a read is not cached.
    pub(crate) fn read_relaxed(&self, buffer: &mut [u8], offset: u64) -> Option<Result<usize>> {
        let cache = self.pool().cache()?;
        let last = offset.checked_add((buffer.len() as u64).checked_sub(1)?)?;
        if !self.rights().read || offset / BLOCK_BYTES != last / BLOCK_BYTES {
            return None;
        }
        // Nothing is read for a session that has ended.
        if self.handle().is_ok_and(|handle| handle.session.is_ended()) {
            return None;
        }
        let kept = self.relaxed.get_or_make(|| cache.open_relaxed()).ok()?;
        if let Some(bytes) = kept.read(buffer, offset) {
            return Some(Ok(bytes));
        }
        Some(self.bring_relaxed(&**kept, buffer, offset))
    }

    fn bring_relaxed(&self, kept: &dyn RelaxedReads, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let (number, start) = (offset / BLOCK_BYTES, offset / BLOCK_BYTES * BLOCK_BYTES);
        let moment = kept.moment();
        let numbers = self.number_before(kept, moment, start)?;
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let read = self.read_into(&mut Memory::of_slice(&mut bytes, start), start)?;
        bytes.truncate(read);
        let there = bytes.get((offset - start) as usize..).unwrap_or_default();
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        // There is nothing to cache behind the end.
        if !bytes.is_empty() {
            kept.keep(moment, number, bytes.into(), numbers);
        }
        Ok(count)
    }

    /// The number of the lane of a byte, taken before the byte is read.
    fn number_before(
        &self,
        kept: &dyn RelaxedReads,
        moment: u64,
        start: u64,
    ) -> Result<Option<Arc<LaneNumbers>>> {
        let layout = self.layout();
        let lane = ((start / layout.stripe_unit) % u64::from(layout.width)) as u16;
        if let Some(number) = kept.lane_number(lane) {
            return Ok(Some(number));
        }
        let Some(number) = self.lane_number(lane)?.map(Arc::new) else { return Ok(None) };
        kept.learn_lane(moment, lane, number.clone());
        Ok(Some(number))
    }
}

/// The oldest state of all blocks; `None` when that of some block is not known.
fn oldest(blocks: &[(ByteRange, Option<Arc<LaneNumbers>>)]) -> Option<LaneNumbers> {
    let mut numbers = blocks.iter().map(|(_, numbers)| numbers.as_ref());
    let mut last = numbers.next()??;
    let mut oldest = LaneNumbers::clone(last);
    for numbers in numbers {
        let numbers = numbers?;
        // Most of them were read after the same number was taken.
        if !Arc::ptr_eq(numbers, last) {
            oldest = oldest.older(numbers)?;
            last = numbers;
        }
    }
    Some(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakePool;
    use crate::{ConnectOptions, OpenOptions, Pool};

    // SEMANTICS 143.3
    #[test]
    fn a_relaxed_open_reads_what_it_has_appended() {
        let pool = FakePool::start(1);
        let client = Pool::connect(&ConnectOptions { cache_bytes: 1 << 20, ..pool.options() }).unwrap();
        for (path, bytes) in [("/small", 100), ("/large", 10_000)] {
            let theirs = pool.connect().open(path, &OpenOptions::creating()).unwrap();
            assert_eq!(theirs.write_at(&vec![1; bytes], 0).unwrap(), bytes);
            let relaxed = OpenOptions { sharing: Some(Mode::Relaxed), ..OpenOptions::creating() };
            let file = client.open(path, &relaxed).unwrap();
            let read = || {
                let mut buffer = [0; 3];
                assert_eq!(file.read_at(&mut buffer, 10).unwrap(), 3);
                buffer
            };
            assert_eq!(read(), [1; 3]);
            theirs.truncate(10).unwrap();
            assert_eq!(read(), [1; 3], "it is kept");
            assert_eq!(file.append(b"new").unwrap(), 10);
            assert_eq!(&read(), b"new");
        }
    }
}
