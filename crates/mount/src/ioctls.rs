//! Publishing and refreshing some bytes of an open file: the same as by the attribute, but by a descriptor,
//! and without a name for each range.

use std::os::fd::AsFd;

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result};
use ramlace_fuse::Reply;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter};

use crate::data::await_published;
use crate::mounted::PoolFileSystem;
use crate::refresh::Answer;

/// `ioctl` with this number and a [`ByteSpan`] publishes; `ramlace.h` has it as well.
const PUBLISH_IOCTL: Opcode = rustix::ioctl::opcode::write::<ByteSpan>(0xE6, 1);
/// `ioctl` with this number and a [`ByteSpan`] refreshes.
const REFRESH_IOCTL: Opcode = rustix::ioctl::opcode::write::<ByteSpan>(0xE6, 2);

/// The argument of both.
#[repr(C)]
struct ByteSpan {
    /// The first byte.
    offset: u64,
    /// The number of bytes; 0: all that follow.
    length: u64,
}

/// Publishes what programs of this machine have stored into these bytes of a file on a mount; an empty range
/// has none.
///
/// Errors: `Unsupported` for a file that is not on a mount; the reason why stores could not be written back.
pub fn publish_bytes(file: impl AsFd, range: ByteRange) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let span = ByteSpan { offset: range.start, length: range.length() };
    // SAFETY: the kernel reads the two numbers from the pointer, which is valid during the call.
    let published = unsafe { rustix::ioctl::ioctl(file, Setter::<PUBLISH_IOCTL, ByteSpan>::new(span)) };
    published.map_err(|errno| match errno {
        Errno::NOTTY => Error::new(ErrorKind::Unsupported, "the file is on no mount of a pool"),
        other => Error::from_io(&other.into(), "publishing some bytes"),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Publish,
    Refresh,
}

impl PoolFileSystem {
    /// Serves a call that programs make by a descriptor, `number`.
    pub(crate) fn ioctl(&self, inode: InodeId, number: u64, command: u32, input: &[u8], reply: Reply) {
        match asked(command, input) {
            None => _ = reply.error(libc::ENOTTY),
            Some(Err(error)) => _ = reply.error(error.errno()),
            Some(Ok((Verb::Refresh, part))) => self.refresh_part(inode, part, reply, Answer::Returned),
            Some(Ok((Verb::Publish, part))) => self.publish_part(inode, number, part, reply),
        }
    }

    /// Makes the kernel write these bytes back, and answers when all clients see them.
    fn publish_part(&self, inode: InodeId, number: u64, part: ByteRange, reply: Reply) {
        let opened = self.handles.get(number).and_then(|open| {
            open.finish_open(&self.versions, &self.handles);
            if open.passthrough {
                self.passthrough.publish_all(inode)?;
            }
            Ok(open)
        });
        let open = match opened {
            Ok(open) => open,
            Err(error) => {
                reply.error(error.errno());
                return;
            }
        };
        let passthrough = open.passthrough;
        let (pool, pages, errors) = (self.pool.clone(), self.pages.clone(), self.write_errors.clone());
        let published = move |written: Result<()>| {
            let told = written
                .and_then(|()| await_published(&pool, &pages, inode))
                .and_then(|()| errors.tell(inode, &open.errors_reported));
            match told {
                Ok(()) => reply.ioctl(0, &[]),
                Err(error) => reply.error(error.errno()),
            };
        };
        if self.handles.is_written_here(inode) && !passthrough {
            self.refresher.after_writing_back_part(inode, part, Box::new(published));
        } else {
            published(Ok(()));
        }
    }
}

/// The operation and bytes of a call; `None`: it is not known here.
fn asked(command: u32, input: &[u8]) -> Option<Result<(Verb, ByteRange)>> {
    let verb = match command {
        PUBLISH_IOCTL => Verb::Publish,
        REFRESH_IOCTL => Verb::Refresh,
        _ => return None,
    };
    let number =
        |at: usize| input.get(at..at + 8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")));
    let range = number(0).zip(number(8)).and_then(|(offset, length)| match length {
        0 => Some(ByteRange { start: offset, end: i64::MAX as u64 }),
        _ => ByteRange::at(offset, length),
    });
    let range = range.filter(|range| range.start <= range.end && range.end <= i64::MAX as u64);
    Some(
        range
            .map(|range| (verb, range))
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "bytes beyond any file")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 43.6
    #[test]
    fn a_call_by_a_descriptor_names_its_bytes() {
        let input = |offset: u64, length: u64| [offset.to_ne_bytes(), length.to_ne_bytes()].concat();
        let parsed = |command, input: &[u8]| asked(command, input).unwrap().map_err(|error| error.kind());
        let end = i64::MAX as u64;
        assert_eq!(parsed(PUBLISH_IOCTL, &input(5, 7)), Ok((Verb::Publish, ByteRange { start: 5, end: 12 })));
        assert_eq!(parsed(REFRESH_IOCTL, &input(5, 0)), Ok((Verb::Refresh, ByteRange { start: 5, end })));
        for wrong in
            [input(end + 1, 0), input(end, 1), input(u64::MAX, 2), input(1, 2)[..15].to_vec(), Vec::new()]
        {
            assert_eq!(parsed(REFRESH_IOCTL, &wrong), Err(ErrorKind::Invalid), "{wrong:?}");
        }
        assert!(asked(0x5401, &input(0, 0)).is_none());
        assert_eq!((PUBLISH_IOCTL, REFRESH_IOCTL), (0x4010_E601, 0x4010_E602), "as in ramlace.h");
    }
}
