//! What clients of the same machine can do with a file that they were granted, and what they cannot.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use crate::common::*;
use ramlace_base::{ByteRange, ErrorKind};
use ramlace_store::Window;

/// Sends from a window and receives into it, as the server does; the errno, or 0.
fn transfer(window: &Window, receive: bool) -> i32 {
    let (near, mut far) = UnixStream::pair().unwrap();
    let segment = window.segments().next().unwrap();
    let mut part = libc::iovec { iov_base: segment.address.cast(), iov_len: segment.length };
    far.write_all(&vec![5; segment.length]).unwrap();
    // SAFETY: all-zero bytes are a message header without parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    // SAFETY: the window is held, so its addresses are mapped; only the kernel touches them.
    let done = unsafe {
        if receive {
            libc::recvmsg(near.as_raw_fd(), &raw mut message, 0)
        } else {
            libc::writev(near.as_raw_fd(), &raw const part, 1)
        }
    };
    if done < 0 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

#[test]
fn a_client_that_cuts_its_file_gives_efault_and_no_signal() {
    on_each_backing("truncation", 32 * MIB, |store| {
        write(store, lane(1), 0, &vec![1; 4 * MIB as usize]).unwrap();
        let window = store.window(lane(1), 2 * MIB, 4096).unwrap();
        assert_eq!((transfer(&window, true), transfer(&window, false)), (0, 0));
        // Also through a read-only descriptor: its holder has the file's uid.
        let granted = store.grant(lane(1), false).unwrap();
        let path = format!("/proc/self/fd/{}", granted.as_raw_fd());
        File::options().write(true).open(path).unwrap().set_len(100).unwrap();
        assert_eq!(transfer(&window, true), libc::EFAULT);
        assert_eq!(transfer(&window, false), libc::EFAULT);
        assert_eq!(read(store, lane(1), 2 * MIB, 10), [0; 10]);
        assert_eq!(store.write_staged(lane(1), 2 * MIB, &[1]).unwrap_err().kind(), ErrorKind::Fatal);
        store.recount_granted().unwrap();
        assert_eq!(store.lane_length(lane(1)).unwrap(), 100);
        assert_counted(store);
        // Preparing again makes it whole.
        write(store, lane(1), 2 * MIB, &[8; 4096]).unwrap();
        assert_eq!(transfer(&window, true), 0);
        assert_eq!(read(store, lane(1), 2 * MIB, 4096), [5; 4096]);
        assert_eq!(read(store, lane(1), 0, 101), [vec![1; 100], vec![0]].concat());
        assert_counted(store);
    });
}

#[test]
fn what_a_client_writes_is_read_and_counted() {
    on_each_backing("client writes", 32 * MIB, |store| {
        store.create_lane(lane(1)).unwrap();
        store.allocate(lane(1), MIB).unwrap();
        let client = File::from(store.grant(lane(1), true).unwrap());
        client.write_all_at(b"from the client", 5000).unwrap();
        assert_eq!(read(store, lane(1), 5000, 15), b"from the client");
        // It may also make the file longer: that is found and counted.
        client.write_all_at(&vec![6; 3 * MIB as usize], 4 * MIB).unwrap();
        store.recount_granted().unwrap();
        assert_counted(store);
        assert_eq!(store.lane_length(lane(1)).unwrap(), 7 * MIB);
        store.prepare_write(lane(1), 0, 7 * MIB).unwrap();
        assert_eq!(read(store, lane(1), 4 * MIB, 3 * MIB as usize), vec![6; 3 * MIB as usize]);
        assert_counted(store);
    });
}

#[test]
fn a_granted_descriptor_leads_to_that_file_alone() {
    on_each_backing("grants", 32 * MIB, |store| {
        write(store, lane(1), 0, b"mine").unwrap();
        write(store, lane(2), 0, b"another's").unwrap();
        let granted = store.grant(lane(1), false).unwrap();
        let flags = rustix::io::fcntl_getfd(&granted).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        use rustix::fs::{Mode, OFlags};
        for name in ["..", "../", &format!("../{}", lane(2))] {
            let opened = rustix::fs::openat(&granted, name, OFlags::RDONLY, Mode::empty());
            assert_eq!(opened.unwrap_err(), rustix::io::Errno::NOTDIR, "{name}");
            let path = format!("/proc/self/fd/{}/{name}", granted.as_raw_fd());
            let error = File::open(&path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR), "{path}");
        }
        let file = File::from(granted);
        assert_eq!(file.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"mine");
    });
}

#[test]
fn memory_that_a_client_took_in_secret_is_found_missing_without_harm() {
    if !private_works("the kernel's own refusal") {
        return;
    }
    let root =
        ramlace_store::StoreRoot::create(&options(32 * MIB, ramlace_store::Backing::PrivateTmpfs)).unwrap();
    let store = &mut TestStore::new(root);
    write(store, lane(1), 0, &[1; 100]).unwrap();
    let client = File::from(store.grant(lane(1), true).unwrap());
    client.write_all_at(&vec![6; 30 * MIB as usize], 0).unwrap();
    // The books say that there is room; the kernel knows better, in the middle of the write.
    for end in [4 * MIB, MIB / 2 * 5 + 7] {
        let error = write(store, lane(2), 0, &vec![2; end as usize]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_eq!(store.lane_allocated_bytes(lane(2)).unwrap(), 0);
        assert_eq!(store.lane_length(lane(2)).unwrap(), 0);
    }
    store.recount_granted().unwrap();
    assert_counted(store);
    assert_eq!(read(store, lane(1), 30 * MIB - 1, 1), [6]);
    store.cut(lane(1), MIB).unwrap();
    write(store, lane(2), 0, &vec![2; 4 * MIB as usize]).unwrap();
    assert_counted(store);
}

// SEMANTICS 98.5
#[test]
fn thousands_of_runs_of_a_granted_lane_leave_what_a_client_has_between_them() {
    on_each_backing("granted runs", 64 * MIB, |store| {
        let all: Vec<ByteRange> =
            (0..5000u64).map(|at| ByteRange { start: 100 + at * 24, end: 100 + at * 24 + 8 }).collect();
        let bytes: Vec<u8> = (0..40_000u32).map(|at| (at % 251) as u8 + 1).collect();
        store.create_lane(lane(1)).unwrap();
        store.prepare_writes(lane(1), &all).unwrap();
        let client = File::from(store.grant(lane(1), true).unwrap());
        client.write_all_at(&vec![255; 200_000], 0).unwrap();
        store.write_runs(lane(1), &all, &bytes).unwrap();
        assert_eq!(store.read_runs(lane(1), all.iter().copied()).unwrap(), bytes);
        let between = all.windows(2).map(|two| ByteRange { start: two[0].end, end: two[1].start });
        assert!(store.read_runs(lane(1), between).unwrap().iter().all(|byte| *byte == 255));
        assert_eq!(read(store, lane(1), 0, 100), [255; 100]);
        store.recount_granted().unwrap();
        assert_counted(store);
        // A client that cuts the file makes it an error, and no more.
        client.set_len(50_000).unwrap();
        assert_eq!(store.write_runs(lane(1), &all, &bytes).unwrap_err().kind(), ErrorKind::Fatal);
        store.prepare_writes(lane(1), &all).unwrap();
        store.write_runs(lane(1), &all, &bytes).unwrap();
        assert_eq!(store.read_runs(lane(1), all.iter().copied()).unwrap(), bytes);
    });
}
