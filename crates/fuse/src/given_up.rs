//! Notifications that a guard was sent and whose results nobody waits for any more: the kernel waits for a page that a
//! request holds. Each keeps a thread of the guard, and a descriptor on both sides, until then.
//!
//! Every answer with the size of a file may need one, and a server that does not answer may hold a page for long. So there
//! is a limit, for each file and for all: beyond it nothing is sent.

use std::collections::HashMap;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::guard::Line;

/// Of one node; more are begun only by threads that are all at it at once. More than one: the kernel raises a size before it waits for the page, and a read that is answered
/// afterwards may take it back.
pub const OF_NODE_MAX: usize = 4;
/// Of all nodes.
pub const ALL_MAX: usize = 64;

/// The sockets to the threads that wait, by the node.
#[derive(Default)]
pub struct GivenUp {
    waiting: HashMap<u64, Vec<Line>>,
    count: usize,
}

impl GivenUp {
    /// Whether one more may be sent for this node. Lines whose threads wait no more go to `idle`.
    pub fn has_room(&mut self, node: u64, idle: &mut Vec<Line>) -> bool {
        self.collect_of(node, idle);
        if self.count >= ALL_MAX {
            let nodes: Vec<u64> = self.waiting.keys().copied().collect();
            nodes.into_iter().for_each(|node| self.collect_of(node, idle));
        }
        self.count < ALL_MAX && self.waiting.get(&node).is_none_or(|lines| lines.len() < OF_NODE_MAX)
    }

    /// The result of this one is not waited for.
    pub fn add(&mut self, node: u64, line: Line) {
        self.waiting.entry(node).or_default().push(line);
        self.count += 1;
    }

    /// The guard has ended.
    pub fn clear(&mut self) {
        *self = GivenUp::default();
    }

    fn collect_of(&mut self, node: u64, idle: &mut Vec<Line>) {
        let Some(lines) = self.waiting.remove(&node) else { return };
        self.count -= lines.len();
        for line in lines {
            match rustix::net::recv(&line.socket, &mut [0_u8; 4], RecvFlags::DONTWAIT) {
                Ok((4, _)) => idle.push(line),
                Err(Errno::AGAIN | Errno::INTR) => self.add(node, line),
                // Its thread has ended.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::guard::pair;

    fn line() -> (Line, OwnedFd) {
        let (socket, theirs) = pair().unwrap();
        (Line { life: 1, socket }, theirs)
    }

    // SEMANTICS 120.5
    #[test]
    fn notifications_that_wait_for_a_page_do_not_pile_up() {
        let (mut given_up, mut idle) = (GivenUp::default(), Vec::new());
        let mut threads = Vec::new();
        for _ in 0..OF_NODE_MAX {
            assert!(given_up.has_room(7, &mut idle));
            let (line, theirs) = line();
            given_up.add(7, line);
            threads.push(theirs);
        }
        assert!(!given_up.has_room(7, &mut idle), "all of them still wait");
        assert!(given_up.has_room(8, &mut idle));
        rustix::io::write(&threads[0], &0_i32.to_le_bytes()).unwrap();
        assert!(given_up.has_room(7, &mut idle));
        assert_eq!((idle.len(), given_up.count), (1, OF_NODE_MAX - 1), "its line is used again");
        drop(threads);
        assert!(given_up.has_room(7, &mut idle));
        assert_eq!((idle.len(), given_up.count), (1, 0), "the others have ended");
    }

    // SEMANTICS 120.5
    #[test]
    fn of_all_files_together_there_is_a_limit() {
        let (mut given_up, mut idle) = (GivenUp::default(), Vec::new());
        let lines: Vec<(Line, OwnedFd)> = (0..ALL_MAX).map(|_| line()).collect();
        let mut threads = Vec::new();
        for (node, (line, theirs)) in (1..).zip(lines) {
            assert!(given_up.has_room(node, &mut idle));
            given_up.add(node, line);
            threads.push(theirs);
        }
        assert!(!given_up.has_room(1 << 40, &mut idle));
        rustix::io::write(&threads[3], &0_i32.to_le_bytes()).unwrap();
        assert!(given_up.has_room(1 << 40, &mut idle), "one of another file waits no more");
        given_up.clear();
        assert_eq!(given_up.count, 0);
    }
}
