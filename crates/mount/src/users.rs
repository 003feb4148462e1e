//! The user for whom a request is made, on a mount for several users.
//!
//! The kernel's request names user, group and thread. The thread waits in the kernel until it is answered, so
//! its other groups in `/proc` at that moment are those with which it asked: nothing is cached, and nothing
//! is stale. A thread that is not visible (in another pid namespace, or killed meanwhile) has no other
//! groups. If `/proc` hides processes (`hidepid`) from this process, which has dropped its privileges, the
//! porter reads them, which has not.

use std::io::Read;

use ramlace_base::{Error, ErrorKind, Result};
use ramlace_fuse::{Caller, Operation, Porter};
use ramlace_wire::{Credentials, Groups};

use crate::kept_lists::is_list;

/// The limit of bytes of `/proc/PID/status` that are read: 65,536 groups of ten digits, and the rest.
const STATUS_BYTES_MAX: u64 = 1 << 20;

/// Whether the request needs a user's rights. Operations on an open file were allowed when it was opened, and
/// access lists may be read by all.
pub(crate) fn needs_user(operation: &Operation<'_>) -> bool {
    let reads_list = matches!(operation, Operation::GetXattr { name, .. } if is_list(name));
    !reads_list
        && !matches!(
            operation,
            Operation::Read { .. }
                | Operation::Write { .. }
                | Operation::Flush { .. }
                | Operation::Fsync { .. }
                | Operation::Release { .. }
                | Operation::Allocate { .. }
                | Operation::GetLock { .. }
                | Operation::SetLock { .. }
                | Operation::Seek { .. }
                | Operation::Poll { .. }
                | Operation::Ioctl { .. }
                | Operation::GetAttributes { .. }
                | Operation::StatX { .. }
                | Operation::OpenDirectory { .. }
                | Operation::ReleaseDirectory { .. }
                | Operation::FsyncDirectory { .. }
                | Operation::StatFs
                | Operation::SyncFs
        )
}

/// The calling user, with all groups.
pub(crate) fn credentials(caller: Caller, porter: &Porter) -> Result<Credentials> {
    credentials_by(caller, |thread| status_of(thread).or_else(|| porter.groups_of(thread).ok()))
}

fn credentials_by(caller: Caller, status: impl FnOnce(u32) -> Option<String>) -> Result<Credentials> {
    let Caller { uid, gid, pid } = caller;
    // No mode restricts the super-user, and a squashed one is in no group.
    if uid == 0 || pid == 0 {
        return Ok(Credentials::new(uid, gid));
    }
    let groups = status(pid).map_or(Ok(Groups::NONE), |status| groups_in(&status, uid, gid))?;
    Ok(Credentials { uid, gid, groups })
}

fn status_of(thread: u32) -> Option<String> {
    let file = std::fs::File::open(format!("/proc/{thread}/status")).ok()?;
    let mut text = String::new();
    file.take(STATUS_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The groups of a thread, if it has this user and group: its number may have been reused.
fn groups_in(status: &str, uid: u32, gid: u32) -> Result<Groups> {
    let numbers = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect::<Vec<u32>>()
    };
    // Real, effective, saved, file system.
    let is_of = |name: &str, id: u32| numbers(name).get(3) == Some(&id);
    if !is_of("Uid:", uid) || !is_of("Gid:", gid) {
        return Ok(Groups::NONE);
    }
    Groups::new(numbers("Groups:")).map_err(|error| {
        Error::new(ErrorKind::Denied, format!("user {uid} asks through the mount: {}", error.message()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tGroups: 9\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t30 10 20 \n";

    #[test]
    fn the_groups_are_those_of_the_thread_that_asks() {
        assert_eq!(groups_in(STATUS, 4, 8).unwrap().as_slice(), [10, 20, 30]);
        for (uid, gid) in [(1, 8), (4, 5), (9, 9)] {
            assert_eq!(groups_in(STATUS, uid, gid).unwrap(), Groups::NONE);
        }
        assert_eq!(groups_in("", 4, 8).unwrap(), Groups::NONE);
    }

    #[test]
    fn a_user_in_too_many_groups_is_refused() {
        let many: Vec<String> = (0..300).map(|group| group.to_string()).collect();
        let status = format!("Uid:\t1\t1\t1\t1\nGid:\t1\t1\t1\t1\nGroups:\t{}\n", many.join(" "));
        assert_eq!(groups_in(&status, 1, 1).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn this_thread_is_in_its_own_groups() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        groups.sort_unstable();
        let pid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let found = status_of(pid).map(|status| groups_in(&status, uid, gid).unwrap()).unwrap();
        assert_eq!(found.as_slice(), groups);
    }

    #[test]
    fn the_super_user_is_not_looked_at() {
        let caller = Caller { uid: 0, gid: 0, pid: std::process::id() };
        let looked = |_| -> Option<String> { panic!("it is looked at") };
        assert_eq!(credentials_by(caller, looked).unwrap(), Credentials::new(0, 0));
    }
}
