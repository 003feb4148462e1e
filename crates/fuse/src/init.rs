//! INIT, the first request: chooses from the features that the kernel offers.

use std::path::Path;

use crate::abi::{self, InitOut, init as bit};
use crate::decode::Init;
use crate::options::{Invalidation, MountOptions};

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Largest READ and WRITE.
    pub request_bytes_max: usize,
    /// The features (`FUSE_*` of INIT) that both sides know and this one wants.
    pub flags: u64,
}

impl Agreed {
    /// Whether the kernel can be asked to look up every name again before it believes it.
    pub fn has_epochs(&self) -> bool {
        self.minor >= abi::EPOCH_MINOR_MIN
    }
}

/// Pages of one request in kernels that know no other limit (FUSE_MAX_MAX_PAGES).
const REQUEST_PAGES_MAX_DEFAULT: usize = 256;
/// Pages of one request, as the reply can express them.
const REQUEST_PAGES_MAX: usize = u16::MAX as usize;
/// Where newer kernels report the limit, in pages (Linux 6.13).
const PAGES_LIMIT_PATH: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// The machine's limit of one request, in pages.
pub fn request_pages_limit() -> usize {
    let told = std::fs::read_to_string(Path::new(PAGES_LIMIT_PATH)).ok();
    told.and_then(|text| text.trim().parse().ok()).unwrap_or(REQUEST_PAGES_MAX_DEFAULT)
}

/// The answer to a kernel of the same major version. Pure.
pub fn agree(
    theirs: &Init,
    options: &MountOptions,
    page_bytes: usize,
    pages_limit: usize,
) -> (Agreed, InitOut) {
    let pages =
        options.request_bytes_max.div_ceil(page_bytes).clamp(1, pages_limit.clamp(1, REQUEST_PAGES_MAX));
    let agreed = Agreed {
        minor: theirs.minor.min(abi::MINOR_MAX),
        request_bytes_max: pages * page_bytes,
        flags: wanted(options) & theirs.flags,
    };
    let background = options.background_requests_max.max(1);
    let reply = InitOut {
        major: abi::MAJOR,
        minor: agreed.minor,
        max_readahead: u32::try_from(options.read_ahead_bytes).unwrap_or(u32::MAX),
        flags: (agreed.flags & u64::from(u32::MAX)) as u32,
        max_background: background,
        // Read-ahead eases off when three quarters of the background requests are under way.
        congestion_threshold: (background / 4 * 3).max(1),
        max_write: u32::try_from(agreed.request_bytes_max).unwrap_or(u32::MAX),
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        flags2: (agreed.flags >> 32) as u32,
        // A backing file lies on a file system that is not itself stacked.
        max_stack_depth: u32::from(agreed.flags & bit::PASSTHROUGH != 0),
        request_timeout: u16::try_from(options.request_timeout.as_secs()).unwrap_or(u16::MAX),
        ..Default::default()
    };
    (agreed, reply)
}

/// The features that the options ask for. Never FUSE_ATOMIC_O_TRUNC: with it an open for reading that truncates
/// empties a program that runs before the kernel finds that it is busy. Never FUSE_WRITEBACK_CACHE: with it a node reads pages that another truncated.
fn wanted(options: &MountOptions) -> u64 {
    let always = bit::ASYNC_READ
        | bit::BIG_WRITES
        | bit::ASYNC_DIO
        | bit::PARALLEL_DIROPS
        | bit::MAX_PAGES
        | bit::HANDLE_KILLPRIV_V2
        | bit::INIT_EXT;
    let optional = [
        (options.remote_locks, bit::POSIX_LOCKS | bit::FLOCK_LOCKS),
        (options.readdir_plus, bit::DO_READDIRPLUS | bit::READDIRPLUS_AUTO),
        (options.invalidation == Invalidation::AnyChange, bit::AUTO_INVAL_DATA),
        (options.invalidation == Invalidation::Explicit, bit::EXPLICIT_INVAL_DATA),
        (options.cache_symlinks, bit::CACHE_SYMLINKS),
        (options.direct_io_mmap, bit::DIRECT_IO_ALLOW_MMAP),
        (options.access_lists, bit::POSIX_ACL | bit::DONT_MASK),
        (options.passthrough, bit::PASSTHROUGH),
        (!options.request_timeout.is_zero(), bit::REQUEST_TIMEOUT),
    ];
    always | optional.iter().filter(|(on, _)| *on).fold(0, |flags, (_, bits)| flags | bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, flags: u64) -> Init {
        Init { major: 7, minor, read_ahead_bytes: 128 << 10, flags }
    }

    #[test]
    fn an_old_kernel_gets_its_own_version_and_nothing_it_does_not_know() {
        let flags = bit::ASYNC_READ | bit::BIG_WRITES | bit::MAX_PAGES;
        let (agreed, reply) = agree(&kernel(31, flags), &MountOptions::default(), 4096, 256);
        assert_eq!((agreed.minor, reply.minor), (31, 31));
        assert_eq!((reply.flags, reply.flags2), (flags as u32, 0));
        assert_eq!((reply.max_write, reply.max_pages), (1 << 20, 256));
    }

    // SEMANTICS 78.3
    #[test]
    fn a_kernel_before_the_epochs_of_names_has_none_whatever_else_it_knows() {
        let agreed = |minor| agree(&kernel(minor, u64::MAX), &MountOptions::default(), 4096, 256).0;
        assert!(!agreed(abi::EPOCH_MINOR_MIN - 1).has_epochs());
        assert!(agreed(abi::EPOCH_MINOR_MIN).has_epochs() && agreed(99).has_epochs());
    }

    #[test]
    fn a_new_kernel_gets_what_the_options_ask() {
        let options =
            MountOptions { passthrough: true, invalidation: Invalidation::AnyChange, ..Default::default() };
        let (agreed, reply) = agree(&kernel(99, u64::MAX), &options, 4096, 256);
        assert_eq!(agreed.minor, abi::MINOR_MAX);
        assert_eq!(u64::from(reply.flags) | u64::from(reply.flags2) << 32, agreed.flags);
        assert_ne!(agreed.flags & bit::AUTO_INVAL_DATA, 0);
        assert_eq!(agreed.flags & bit::EXPLICIT_INVAL_DATA, 0);
        assert_eq!(agreed.flags & 1 << 16, 0, "no write-back cache");
        assert_eq!(agreed.flags & 1 << 4, 0, "no export");
        assert_eq!(reply.max_stack_depth, 1);
    }

    #[test]
    fn requests_obey_the_machine() {
        let options = MountOptions { request_bytes_max: 4 << 20, ..MountOptions::default() };
        let (agreed, reply) = agree(&kernel(45, u64::MAX), &options, 4096, 512);
        assert_eq!((agreed.request_bytes_max, reply.max_pages), (2 << 20, 512));
        let (agreed, _) = agree(&kernel(45, u64::MAX), &options, 4096, 0);
        assert_eq!(agreed.request_bytes_max, 4096);
        let (agreed, _) = agree(&kernel(45, u64::MAX), &options, 65536, 256);
        assert_eq!(agreed.request_bytes_max, 4 << 20);
    }
}
