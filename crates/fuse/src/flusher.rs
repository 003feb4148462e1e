//! Marks this process as one that writes other processes' pages back (`PR_SET_IO_FLUSHER`), so that it need not wait for
//! such pages itself when it needs memory.

/// From linux/prctl.h; the libc crate does not have it.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Declares to the kernel that this thread, and those it starts from now on, write pages back (`PR_SET_IO_FLUSHER`, Linux 5.6):
/// when memory is short, it then gives them memory without making them wait for pages that they have yet to write.
/// Without it a mount and its programs in one control group (version 1) of little memory can stop for ever: the daemon
/// wants memory, and the kernel first waits for pages of the group that only the daemon can write.
///
/// False: the kernel does not let this process (it takes CAP_SYS_RESOURCE).
pub fn become_io_flusher() -> bool {
    let (on, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: this call takes numbers alone, and changes a flag of this thread.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, on, unused, unused, unused) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_becomes_one_and_others_are_told() {
        const CAP_SYS_RESOURCE: u32 = 24;
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        let may = u64::from_str_radix(rights.trim(), 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1;
        // In a thread of its own, which takes the flag with it.
        assert_eq!(std::thread::spawn(become_io_flusher).join().unwrap(), may);
    }
}
