use zerocopy::IntoBytes;

use super::*;
use crate::abi::InHeader;

/// A request as the kernel lays it out.
fn message(code: u32, body: &[u8]) -> Vec<u8> {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader {
        len,
        opcode: code,
        unique: 0x22,
        nodeid: 7,
        uid: 1000,
        gid: 100,
        pid: 42,
        ..Default::default()
    };
    [header.as_bytes(), body].concat()
}

fn with_name(front: &[u8], names: &[&[u8]]) -> Vec<u8> {
    let mut body = front.to_vec();
    for name in names {
        body.extend_from_slice(name);
        body.push(0);
    }
    body
}

/// One valid request of every operation, and what it means.
fn samples() -> Vec<(u32, Vec<u8>, Option<Operation<'static>>)> {
    let mut list = named_samples();
    list.extend(handle_samples());
    list.extend(rare_samples());
    list.extend(engine_samples());
    list
}

fn named_samples() -> Vec<(u32, Vec<u8>, Option<Operation<'static>>)> {
    let mknod = abi::MknodIn { mode: 0o100_644, rdev: 5, umask: 0o22, padding: 0 };
    let mkdir = abi::MkdirIn { mode: 0o755, umask: 0o22 };
    let rename2 = abi::Rename2In { newdir: 9, flags: 1, padding: 0 };
    let create = abi::CreateIn { flags: 0o102, mode: 0o644, umask: 0o22, open_flags: 1 };
    let set = abi::SetxattrIn { size: 3, flags: 1 };
    let get = abi::GetxattrIn { size: 64, padding: 0 };
    vec![
        (opcode::LOOKUP, b"name\0".to_vec(), Some(Operation::Lookup { name: b"name" })),
        (
            opcode::SYMLINK,
            b"name\0a/b\0".to_vec(),
            Some(Operation::Symlink { name: b"name", target: b"a/b" }),
        ),
        (
            opcode::MKNOD,
            with_name(mknod.as_bytes(), &[b"n"]),
            Some(Operation::MakeNode { name: b"n", mode: 0o100_644, device: 5, umask: 0o22 }),
        ),
        (
            opcode::MKDIR,
            with_name(mkdir.as_bytes(), &[b"d"]),
            Some(Operation::MakeDirectory { name: b"d", mode: 0o755, umask: 0o22 }),
        ),
        (opcode::UNLINK, b"u\0".to_vec(), Some(Operation::Unlink { name: b"u" })),
        (opcode::RMDIR, b"r\0".to_vec(), Some(Operation::RemoveDirectory { name: b"r" })),
        (
            opcode::RENAME,
            with_name(9u64.as_bytes(), &[b"a", b"b"]),
            Some(Operation::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: 0 }),
        ),
        (
            opcode::RENAME2,
            with_name(rename2.as_bytes(), &[b"a", b"b"]),
            Some(Operation::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: 1 }),
        ),
        (opcode::LINK, with_name(8u64.as_bytes(), &[b"l"]), Some(Operation::Link { node: 8, name: b"l" })),
        (
            opcode::CREATE,
            with_name(create.as_bytes(), &[b"c"]),
            Some(Operation::Create { name: b"c", flags: 0o102, mode: 0o644, umask: 0o22, kill_suid: true }),
        ),
        (
            opcode::TMPFILE,
            with_name(create.as_bytes(), &[b"/"]),
            Some(Operation::TemporaryFile { flags: 0o102, mode: 0o644, umask: 0o22 }),
        ),
        (
            opcode::SETXATTR,
            [with_name(set.as_bytes(), &[b"user.a"]), b"val".to_vec()].concat(),
            Some(Operation::SetXattr { name: b"user.a", value: b"val", flags: 1 }),
        ),
        (
            opcode::GETXATTR,
            with_name(get.as_bytes(), &[b"user.a"]),
            Some(Operation::GetXattr { name: b"user.a", size: 64 }),
        ),
        (opcode::LISTXATTR, get.as_bytes().to_vec(), Some(Operation::ListXattr { size: 64 })),
        (opcode::REMOVEXATTR, b"user.a\0".to_vec(), Some(Operation::RemoveXattr { name: b"user.a" })),
    ]
}

fn handle_samples() -> Vec<(u32, Vec<u8>, Option<Operation<'static>>)> {
    let open = abi::OpenIn { flags: 2, open_flags: 0 };
    let read =
        abi::ReadIn { fh: 3, offset: 4096, size: 512, read_flags: 2, lock_owner: 11, flags: 1, padding: 0 };
    let write =
        abi::WriteIn { fh: 3, offset: 8, size: 4, write_flags: 5, lock_owner: 11, flags: 1, padding: 0 };
    let release = abi::ReleaseIn { fh: 3, flags: 2, release_flags: 3, lock_owner: 11 };
    let flush = abi::FlushIn { fh: 3, unused: 0, padding: 0, lock_owner: 11 };
    let fsync = abi::FsyncIn { fh: 3, flags: 1, padding: 0 };
    vec![
        (opcode::OPEN, open.as_bytes().to_vec(), Some(Operation::Open { flags: 2, kill_suid: false })),
        (opcode::OPENDIR, open.as_bytes().to_vec(), Some(Operation::OpenDirectory { flags: 2 })),
        (
            opcode::READ,
            read.as_bytes().to_vec(),
            Some(Operation::Read { handle: 3, offset: 4096, length: 512, flags: 1, lock_owner: Some(11) }),
        ),
        (
            opcode::READDIR,
            read.as_bytes().to_vec(),
            Some(Operation::ReadDirectory { handle: 3, offset: 4096, size: 512 }),
        ),
        (
            opcode::READDIRPLUS,
            read.as_bytes().to_vec(),
            Some(Operation::ReadDirectoryPlus { handle: 3, offset: 4096, size: 512 }),
        ),
        (
            opcode::WRITE,
            [write.as_bytes(), b"data"].concat(),
            Some(Operation::Write {
                handle: 3,
                offset: 8,
                data: b"data",
                flags: 1,
                lock_owner: None,
                cached: true,
                kill_suid: true,
            }),
        ),
        (
            opcode::RELEASE,
            release.as_bytes().to_vec(),
            Some(Operation::Release { handle: 3, flags: 2, lock_owner: 11, flush: true, flock_unlock: true }),
        ),
        (
            opcode::RELEASEDIR,
            release.as_bytes().to_vec(),
            Some(Operation::ReleaseDirectory { handle: 3, flags: 2 }),
        ),
        (opcode::FLUSH, flush.as_bytes().to_vec(), Some(Operation::Flush { handle: 3, lock_owner: 11 })),
        (opcode::FSYNC, fsync.as_bytes().to_vec(), Some(Operation::Fsync { handle: 3, data_only: true })),
        (
            opcode::FSYNCDIR,
            fsync.as_bytes().to_vec(),
            Some(Operation::FsyncDirectory { handle: 3, data_only: true }),
        ),
        (opcode::STATFS, Vec::new(), Some(Operation::StatFs)),
        (opcode::READLINK, Vec::new(), Some(Operation::ReadLink)),
        (opcode::SYNCFS, 0u64.as_bytes().to_vec(), Some(Operation::SyncFs)),
    ]
}

fn rare_samples() -> Vec<(u32, Vec<u8>, Option<Operation<'static>>)> {
    let get = abi::GetattrIn { flags: 1, dummy: 0, fh: 3 };
    let statx = abi::StatxIn { getattr_flags: 0, reserved: 0, fh: 3, flags: 4, mask: 0xfff };
    let lock = abi::Lock { start: 1, end: 9, kind: 1, pid: 42 };
    let lk = abi::LkIn { fh: 3, owner: 11, lock, flags: 1, padding: 0 };
    let lock = FileLock { start: 1, end: 9, kind: LockKind::Write, pid: 42 };
    let fallocate = abi::FallocateIn { fh: 3, offset: 5, length: 6, mode: 1, padding: 0 };
    let lseek = abi::LseekIn { fh: 3, offset: 5, whence: 4, padding: 0 };
    let copy =
        abi::CopyFileRangeIn { fh_in: 3, off_in: 4, nodeid_out: 5, fh_out: 6, off_out: 7, len: 8, flags: 0 };
    let copied = Operation::CopyFileRange {
        handle: 3,
        offset: 4,
        to_node: 5,
        to_handle: 6,
        to_offset: 7,
        length: 8,
        flags: 0,
    };
    let ioctl = abi::IoctlIn { fh: 3, flags: 0, cmd: 77, arg: 88, in_size: 2, out_size: 16 };
    let input: &'static [u8] = b"in";
    let asked = Operation::Ioctl { handle: 3, flags: 0, command: 77, argument: 88, input, output_size: 16 };
    let poll = abi::PollIn { fh: 3, kh: 4, flags: 1, events: 5 };
    let polled = Operation::Poll { handle: 3, kernel_handle: 4, schedule_notify: true, events: 5 };
    let set = |wait| Operation::SetLock { handle: 3, owner: 11, lock, wait, is_flock: true };
    let access = abi::AccessIn { mask: 4, padding: 0 };
    vec![
        (opcode::GETATTR, get.as_bytes().to_vec(), Some(Operation::GetAttributes { handle: Some(3) })),
        (
            opcode::STATX,
            statx.as_bytes().to_vec(),
            Some(Operation::StatX { handle: None, flags: 4, mask: 0xfff }),
        ),
        (
            opcode::GETLK,
            lk.as_bytes().to_vec(),
            Some(Operation::GetLock { handle: 3, owner: 11, lock, is_flock: true }),
        ),
        (opcode::SETLK, lk.as_bytes().to_vec(), Some(set(false))),
        (opcode::SETLKW, lk.as_bytes().to_vec(), Some(set(true))),
        (opcode::ACCESS, access.as_bytes().to_vec(), Some(Operation::Access { mask: 4 })),
        (
            opcode::FALLOCATE,
            fallocate.as_bytes().to_vec(),
            Some(Operation::Allocate { handle: 3, offset: 5, length: 6, mode: 1 }),
        ),
        (opcode::LSEEK, lseek.as_bytes().to_vec(), Some(Operation::Seek { handle: 3, offset: 5, whence: 4 })),
        (opcode::COPY_FILE_RANGE, copy.as_bytes().to_vec(), Some(copied)),
        (opcode::COPY_FILE_RANGE_64, copy.as_bytes().to_vec(), Some(copied)),
        (opcode::IOCTL, [ioctl.as_bytes(), b"in"].concat(), Some(asked)),
        (opcode::POLL, poll.as_bytes().to_vec(), Some(polled)),
        (opcode::BMAP, vec![0; 16], Some(Operation::Unknown { opcode: opcode::BMAP })),
        (9999, vec![1, 2, 3], Some(Operation::Unknown { opcode: 9999 })),
        (opcode::SETATTR, setattr_sample().as_bytes().to_vec(), Some(setattr_meaning())),
    ]
}

fn setattr_sample() -> abi::SetattrIn {
    abi::SetattrIn {
        valid: fattr::SIZE | fattr::FH | fattr::ATIME | fattr::MTIME_NOW | fattr::MTIME | fattr::KILL_SUIDGID,
        fh: 3,
        size: 100,
        atime: (-5i64).cast_unsigned(),
        atimensec: 9,
        mode: 0o777,
        ..Default::default()
    }
}

fn setattr_meaning() -> Operation<'static> {
    Operation::SetAttributes(SetAttributes {
        handle: Some(3),
        size: Some(100),
        accessed: Some(SetTime::At((-5, 9))),
        modified: Some(SetTime::Now),
        kill_suid: true,
        ..Default::default()
    })
}

/// Messages that no file system answers.
fn engine_samples() -> Vec<(u32, Vec<u8>, Option<Operation<'static>>)> {
    let init = abi::InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: 1 << 30 | 1 };
    let forgets = [
        abi::BatchForgetIn { count: 2, dummy: 0 }.as_bytes(),
        abi::ForgetOne { nodeid: 5, nlookup: 1 }.as_bytes(),
        abi::ForgetOne { nodeid: 6, nlookup: 2 }.as_bytes(),
    ]
    .concat();
    vec![
        (opcode::INIT, [init.as_bytes(), 0x20u32.as_bytes(), &[0; 44]].concat(), None),
        (opcode::FORGET, 3u64.as_bytes().to_vec(), None),
        (opcode::BATCH_FORGET, forgets, None),
        (opcode::INTERRUPT, 0x22u64.as_bytes().to_vec(), None),
        (opcode::DESTROY, Vec::new(), None),
        (opcode::NOTIFY_REPLY, vec![0; 40], None),
    ]
}

#[test]
fn every_request_means_what_the_kernel_says() {
    for (code, body, meaning) in samples() {
        let bytes = message(code, &body);
        let message = decode(&bytes).unwrap_or_else(|_| panic!("operation {code} is valid"));
        assert_eq!((message.opcode, message.unique, message.node), (code, 0x22, 7));
        assert_eq!(message.caller, Caller { uid: 1000, gid: 100, pid: 42 });
        match (message.body, meaning) {
            (Body::Request(operation), Some(meaning)) => assert_eq!(operation, meaning, "operation {code}"),
            (Body::Request(operation), None) => panic!("{operation:?} is not for the file system"),
            (_, meaning) => assert_eq!(meaning, None, "operation {code}"),
        }
    }
}

#[test]
fn the_greeting_has_64_flags_when_it_says_so() {
    let (_, body, _) = engine_samples().swap_remove(0);
    let bytes = message(opcode::INIT, &body);
    let Body::Init(init) = decode(&bytes).unwrap().body else { panic!("a greeting") };
    assert_eq!(init, Init { major: 7, minor: 45, read_ahead_bytes: 131_072, flags: 0x20_4000_0001 });
    let old = abi::InitIn { major: 7, minor: 31, max_readahead: 1, flags: 1 };
    let bytes = message(opcode::INIT, old.as_bytes());
    let Body::Init(init) = decode(&bytes).unwrap().body else { panic!("a greeting") };
    assert_eq!((init.minor, init.flags), (31, 1));
}

#[test]
fn forgotten_nodes_come_in_order() {
    let (_, body, _) = engine_samples().swap_remove(2);
    let bytes = message(opcode::BATCH_FORGET, &body);
    let Body::BatchForget(forgets) = decode(&bytes).unwrap().body else { panic!("forgets") };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(5, 1), (6, 2)]);
}

#[test]
fn extensions_behind_the_arguments_are_left_out() {
    let mut bytes = message(opcode::SETXATTR, &named_samples().swap_remove(11).1);
    bytes.extend_from_slice(&[0xff; 16]);
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[36..38].copy_from_slice(&2u16.to_ne_bytes());
    let Body::Request(operation) = decode(&bytes).unwrap().body else { panic!("a request") };
    assert_eq!(operation, Operation::SetXattr { name: b"user.a", value: b"val", flags: 1 });
    bytes[36..38].copy_from_slice(&u16::MAX.to_ne_bytes());
    assert_eq!(decode(&bytes).unwrap_err().unique, Some(0x22));
}

#[test]
fn every_cut_is_malformed_or_means_less() {
    for (code, body, _) in samples() {
        let whole = message(code, &body);
        for length in 0..whole.len() {
            let told = decode(&whole[..length]);
            let malformed = told.expect_err("its length does not match");
            assert_eq!(malformed.unique.is_some(), length >= size_of::<InHeader>() && answered(code));
            if length >= size_of::<InHeader>() {
                // The same cut by a sender that states the true length: it must not read beyond it.
                let _ = decode(&message(code, &body[..length - size_of::<InHeader>()]));
            }
        }
    }
}

fn answered(code: u32) -> bool {
    ![opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT, opcode::NOTIFY_REPLY].contains(&code)
}

#[test]
fn names_are_never_empty_nor_paths() {
    for body in [&b"\0"[..], b"a/b\0", b"/\0", b"unended", b""] {
        assert!(decode(&message(opcode::LOOKUP, body)).is_err(), "{body:?}");
    }
}

/// A small generator (xorshift64*): the mutations are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Whatever was decoded lies inside the bytes.
fn check_inside(bytes: &[u8]) {
    let inside = |part: &[u8]| {
        bytes.as_ptr_range().start <= part.as_ptr() && part.as_ptr_range().end <= bytes.as_ptr_range().end
    };
    match decode(bytes).map(|message| message.body) {
        Ok(Body::Request(Operation::Write { data, .. })) => assert!(inside(data)),
        Ok(Body::Request(Operation::SetXattr { name, value, .. })) => assert!(inside(name) && inside(value)),
        Ok(Body::Request(Operation::Lookup { name })) => assert!(inside(name) && !name.is_empty()),
        Ok(Body::BatchForget(forgets)) => assert!(forgets.iter().count() * 16 <= bytes.len()),
        _ => {}
    }
}

#[test]
fn mutated_requests_never_panic() {
    let mut random = Random(0x5eed);
    let samples = samples();
    for round in 0..400_000 {
        let (code, body, _) = &samples[round % samples.len()];
        let mut bytes = message(*code, body);
        for _ in 0..=random.below(4) {
            let index = random.below(bytes.len());
            bytes[index] = match random.below(4) {
                0 => 0xff,
                1 => 0,
                _ => random.next() as u8,
            };
        }
        match random.below(4) {
            0 => bytes.truncate(random.below(bytes.len() + 1)),
            1 => bytes.extend_from_slice(&random.next().to_ne_bytes()),
            _ => {}
        }
        if bytes.len() >= 4 && random.below(2) == 0 {
            let len = bytes.len() as u32;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        check_inside(&bytes);
    }
}
