//! Programs on a mount: what they ask arrives, and what is answered reaches them.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use crate::toy::{LOST, Mount, PANIC, PARKED, SLOW, Thing, Toy, alone};
use ramlace_fuse::{MountOptions, Workers};

#[test]
fn files_are_made_written_read_renamed_and_removed() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::default());
    for size in [0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 5] {
        let content: Vec<u8> = (0..size).map(|index| (index * 7 + index / 251) as u8).collect();
        let path = mount.path("file");
        std::fs::write(&path, &content).unwrap();
        assert!(mount.toy.bytes("file") == content, "written, {size} bytes");
        assert!(std::fs::read(&path).unwrap() == content, "read, {size} bytes");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), size as u64);
        std::fs::rename(&path, mount.path("other")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::remove_file(mount.path("other")).unwrap();
    }
    assert!(mount.toy.look().names.is_empty());
}

#[test]
fn directories_and_links_are_listed_and_read() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::default());
    for number in 0..2000 {
        mount.toy.add(format!("file-{number:04}").as_bytes(), Thing::File(vec![0; number]));
    }
    std::fs::create_dir(mount.path("sub")).unwrap();
    std::os::unix::fs::symlink("to/where", mount.path("link")).unwrap();
    assert_eq!(std::fs::read_link(mount.path("link")).unwrap().to_str(), Some("to/where"));
    let mut listed: Vec<_> = std::fs::read_dir(mount.dir()).unwrap().map(Result::unwrap).collect();
    listed.sort_by_key(std::fs::DirEntry::file_name);
    assert_eq!(listed.len(), 2002);
    assert_eq!(listed[1234].metadata().unwrap().len(), 1234);
    assert!(listed[2000].file_type().unwrap().is_symlink());
    assert!(listed[2001].file_type().unwrap().is_dir());
    let statfs = rustix::fs::statvfs(mount.dir()).unwrap();
    assert_eq!(statfs.f_blocks, 77);
}

#[test]
fn a_truncation_reaches_the_file_system() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::with_files(&["file"]));
    let mut file = std::fs::File::options().read(true).write(true).open(mount.path("file")).unwrap();
    file.set_len(4).unwrap();
    assert_eq!(mount.toy.bytes("file"), b"some");
    file.seek(SeekFrom::End(2)).unwrap();
    file.write_all(b"x").unwrap();
    file.rewind().unwrap();
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content, b"some\0\0x");
}

#[test]
fn locks_are_asked_and_never_silently_local() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::with_files(&["file"]));
    let file = std::fs::File::options().read(true).write(true).open(mount.path("file")).unwrap();
    let error = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap_err();
    assert_eq!(error, rustix::io::Errno::NOSYS);
    let error = rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap_err();
    assert_eq!(error, rustix::io::Errno::NOSYS);
    assert_eq!(mount.toy.look().locks, [(true, false), (false, true)]);
}

#[test]
fn a_killed_reader_of_a_parked_request_dies_and_nobody_else_waited() {
    let Some(_alone) = alone() else { return };
    // One worker alone: a parked request holds none.
    let workers = Workers { idle_threads_min: 1, threads_max: 1, reserved_threads: 0 };
    let mount = Mount::with(Toy::with_files(&[PARKED, "file"]), &MountOptions::default(), workers);
    let mut reader = Command::new("cat").arg(mount.path(PARKED)).stdout(Stdio::null()).spawn().unwrap();
    mount.toy.wait_for(|state| !state.parked.is_empty());
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"some bytes");
    reader.kill().unwrap();
    assert!(!reader.wait().unwrap().success());
    let state = mount.toy.look();
    assert!(!state.interrupted.is_empty() && state.parked.is_empty());
}

#[test]
fn many_killed_readers_all_die() {
    let Some(_alone) = alone() else { return };
    let workers = Workers { idle_threads_min: 2, threads_max: 8, reserved_threads: 0 };
    let mount = Mount::with(Toy::with_files(&[PARKED]), &MountOptions::default(), workers);
    for _ in 0..50 {
        let spawn = |_| {
            Command::new("cat").arg(mount.path(PARKED)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let mut readers: Vec<_> = (0..4).map(spawn).map(Result::unwrap).collect();
        // Some are killed before their request, some while it is in flight, some when it is parked.
        readers.iter_mut().for_each(|reader| reader.kill().unwrap());
        readers.iter_mut().for_each(|reader| assert!(!reader.wait().unwrap().success()));
    }
    assert!(mount.toy.look().parked.is_empty());
}

#[test]
fn a_parked_request_is_answered_from_another_thread() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::with_files(&[PARKED]));
    let path = mount.path(PARKED);
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4];
        std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).map(|()| bytes)
    });
    mount.toy.wait_for(|state| !state.parked.is_empty());
    mount.toy.let_go(b"late");
    assert_eq!(&reader.join().unwrap().unwrap(), b"late");
}

#[test]
fn workers_grow_to_their_limit_and_go_on() {
    let Some(_alone) = alone() else { return };
    const LIMIT: usize = 3;
    let workers = Workers { idle_threads_min: 1, threads_max: LIMIT, reserved_threads: 0 };
    let toy = Toy { forgetful: true, ..Toy::with_files(&[SLOW, "file"]) };
    let mount = Mount::with(toy, &MountOptions::default(), workers);
    let slow = std::fs::File::open(mount.path(SLOW)).unwrap();
    let read = |_| {
        let file = slow.try_clone().unwrap();
        std::thread::spawn(move || rustix::io::pread(&file, &mut [0; 4], 0).unwrap())
    };
    let active = |count: usize| mount.toy.wait_for(|_| mount.toy.active.load(Ordering::SeqCst) == count);
    let mut readers: Vec<_> = (1..LIMIT).map(read).collect();
    active(LIMIT - 1);
    assert_eq!(
        std::fs::metadata(mount.path("file")).unwrap().len(),
        10,
        "one worker is left for everybody else"
    );
    readers.extend((0..3).map(read));
    active(LIMIT);
    mount.toy.open_gate();
    readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), 4));
    assert_eq!(mount.toy.active_most.load(Ordering::SeqCst), LIMIT);
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"some bytes");
}

#[test]
fn an_unanswered_request_and_a_panicking_handler_are_errors_of_one_program() {
    let Some(_alone) = alone() else { return };
    let workers = Workers { idle_threads_min: 1, threads_max: 1, reserved_threads: 0 };
    let mount = Mount::with(Toy::with_files(&[LOST, PANIC, "file"]), &MountOptions::default(), workers);
    for name in [LOST, PANIC] {
        let error = std::fs::read(mount.path(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    }
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"some bytes");
}

#[test]
fn forgotten_nodes_are_told() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::with_files(&["file"]));
    let file = std::fs::File::open(mount.path("file")).unwrap();
    assert!(file.as_raw_fd() >= 0);
    std::fs::remove_file(mount.path("file")).unwrap();
    drop(file);
    mount.toy.wait_for(|state| state.forgotten == [(2, 1)]);
}
