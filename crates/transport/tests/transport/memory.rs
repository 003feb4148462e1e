//! Memory that is shared between threads and touched by system calls only, as in a store.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ramlace_transport::RawSegment;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Some memory of a file that any process may truncate.
pub struct Memory {
    file: OwnedFd,
    pointer: *mut u8,
    length: usize,
}

// SAFETY: the pointer is only handed to system calls.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(length: usize) -> Memory {
        let file = memfd_create("transport-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, length as u64).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pointer = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
                .unwrap()
        };
        Memory { file, pointer: pointer.cast(), length }
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn truncate(&self, length: usize) {
        ftruncate(&self.file, length as u64).unwrap();
    }

    /// The range in several uneven pieces, empty ones among them.
    pub fn segments(&self, offset: usize, length: usize) -> Vec<RawSegment> {
        assert!(offset + length <= self.length);
        let mut segments = Vec::new();
        let (mut at, mut step) = (0, 1);
        while at < length {
            let piece = step.min(length - at);
            segments.push(RawSegment { pointer: self.pointer.wrapping_add(offset + at), length: piece });
            segments.push(RawSegment { pointer: std::ptr::null_mut(), length: 0 });
            at += piece;
            step *= 5;
        }
        segments
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += rustix::io::pwrite(&self.file, &bytes[at..], (offset + at) as u64).unwrap();
        }
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut at = 0;
        while at < length {
            let count = rustix::io::pread(&self.file, &mut bytes[at..], (offset + at) as u64).unwrap();
            assert!(count > 0, "the file ends before {}", offset + at);
            at += count;
        }
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and the threads that use it have ended.
        unsafe { munmap(self.pointer.cast(), self.length).unwrap() };
    }
}

/// Bytes that look like no others.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(2).wrapping_add(1));
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

/// A small generator of numbers with a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}
