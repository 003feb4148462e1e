//! Artificial delays, for tests that look for requests which wait for each other in a cycle.
//!
//! A file has two numbers for each kind of operation: how many milliseconds a request of that kind waits before it is
//! handled, and how many its answer waits before it is sent. The test that started the mount changes them while it serves.
//! A mount that was given no such file reads nothing and delays nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::abi::opcode;

/// Kinds are the kernel's numbers of operations, and these.
const KINDS: u32 = 64;
/// What a kernel writes back, unlike what a program writes by a call.
const WRITE_BACK: u32 = 62;
/// The kernel is asked to drop pages.
const DROP: u32 = 63;
/// Of each kind: two numbers of 16 bits, the lower byte first.
const ENTRY_BYTES: usize = 4;

/// The delays of one mount.
#[derive(Debug)]
pub struct Delays {
    file: File,
}

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(u32);

impl Kind {
    /// A request of the kernel.
    pub fn of_request(code: u32, is_write_back: bool) -> Kind {
        match code {
            opcode::WRITE if is_write_back => Kind(WRITE_BACK),
            code => Kind(code),
        }
    }

    /// A drop of pages.
    pub const DROP: Kind = Kind(DROP);
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It has come and nothing was done.
    Before,
    /// It is done, and its answer was not sent yet.
    After,
}

impl Delays {
    /// Reads the numbers from this file, each time anew.
    pub fn new(file: File) -> Delays {
        Delays { file }
    }

    /// Waits as long as the file says now.
    pub fn wait(&self, kind: Kind, moment: Moment) {
        let delay = self.of(kind, moment);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }

    fn of(&self, Kind(kind): Kind, moment: Moment) -> Duration {
        let mut entry = [0; ENTRY_BYTES];
        if kind >= KINDS || self.file.read_exact_at(&mut entry, u64::from(kind) * ENTRY_BYTES as u64).is_err()
        {
            return Duration::ZERO;
        }
        let [before, before_high, after, after_high] = entry;
        let millis = match moment {
            Moment::Before => u16::from_le_bytes([before, before_high]),
            Moment::After => u16::from_le_bytes([after, after_high]),
        };
        Duration::from_millis(millis.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn each_kind_has_its_delays_and_a_short_file_has_none_of_the_rest() {
        let memory = rustix::fs::memfd_create("delays", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(memory);
        file.write_all(&[0; opcode::WRITE as usize * ENTRY_BYTES]).unwrap();
        file.write_all(&[7, 0, 0, 1]).unwrap();
        let delays = Delays::new(file);
        let write = Kind::of_request(opcode::WRITE, false);
        assert_eq!(delays.of(write, Moment::Before), Duration::from_millis(7));
        assert_eq!(delays.of(write, Moment::After), Duration::from_millis(256));
        for kind in [Kind::of_request(opcode::WRITE, true), Kind::DROP, Kind(opcode::READ), Kind(1 << 20)] {
            assert_eq!(delays.of(kind, Moment::Before), Duration::ZERO);
        }
        delays.wait(Kind::DROP, Moment::After);
    }
}
