//! How many requests of each kind the kernel has sent: what a mount costs is counted, not guessed.

use std::fmt::{Display, Formatter};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::opcode;

/// Numbers of operations that have a counter of their own; others are counted as 0.
const OPCODES_MAX: usize = 64;

/// The requests of one mount, by the kernel's own names (`LOOKUP`, `WRITE`, ...). Shown as a line for each kind that came:
/// its name and its number.
#[derive(Debug)]
pub struct RequestCounts {
    by_opcode: [AtomicU64; OPCODES_MAX],
}

impl Default for RequestCounts {
    fn default() -> RequestCounts {
        RequestCounts { by_opcode: [const { AtomicU64::new(0) }; OPCODES_MAX] }
    }
}

impl RequestCounts {
    pub(crate) fn note(&self, opcode: u32) {
        let counter = self.by_opcode.get(opcode as usize).unwrap_or(&self.by_opcode[0]);
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Display for RequestCounts {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        for (number, counter) in self.by_opcode.iter().enumerate() {
            let name = opcode::NAMES.iter().find(|(known, _)| *known as usize == number);
            match (counter.load(Ordering::Relaxed), name) {
                (0, _) => {}
                (count, Some((_, name))) => writeln!(formatter, "{name} {count}")?,
                (count, None) => writeln!(formatter, "OPERATION_{number} {count}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_told_by_the_kernels_names() {
        let counts = RequestCounts::default();
        assert_eq!(counts.to_string(), "");
        for opcode in [opcode::LOOKUP, opcode::CREATE, opcode::LOOKUP, 63, u32::MAX] {
            counts.note(opcode);
        }
        assert_eq!(counts.to_string(), "OPERATION_0 1\nLOOKUP 2\nCREATE 1\nOPERATION_63 1\n");
    }
}
