//! Mapped and cached pages: write-back, and what the notifier makes the kernel forget.

use std::io::ErrorKind;
use std::path::Path;

use crate::other::{self, Other};
use crate::toy::{Mount, Toy, alone};
use ramlace_fuse::Ended;
use rustix::mm::{MapFlags, ProtFlags};

const BYTES: usize = 3 * 4096;

/// A shared mapping of a file in a process of its own.
struct Mapping(Other);

impl Mapping {
    fn new(path: &Path) -> Mapping {
        Mapping(Other::new("pages::mapper", path))
    }

    fn load(&mut self, index: usize) -> u8 {
        self.0.ask(&format!("{index}")).try_into().unwrap()
    }

    fn store(&mut self, index: usize, byte: u8) {
        assert_eq!(self.0.ask(&format!("{index} {byte}")), byte.into());
    }

    /// Ends the process, which unmaps by that.
    fn end(self) {
        self.0.end();
    }
}

/// Not a test: the other process. A line `INDEX` loads a byte, `INDEX BYTE` stores one.
#[test]
fn mapper() {
    let Some(path) = other::path() else { return };
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), BYTES, access, flags, &file, 0) };
    let start = start.unwrap().cast::<u8>();
    drop(file);
    other::serve(|line| {
        let (index, store) = line.split_once(' ').map_or((line, None), |(index, byte)| (index, Some(byte)));
        let index: usize = index.parse().unwrap();
        assert!(index < BYTES);
        // SAFETY: inside the mapping, which lives until the process ends; volatile, since others change it.
        let byte = unsafe {
            if let Some(byte) = store {
                start.add(index).write_volatile(byte.parse().unwrap());
            }
            start.add(index).read_volatile()
        };
        byte.into()
    });
}

#[test]
fn an_invalidation_refreshes_a_live_shared_mapping() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::with_files(&["file"]));
    let node = mount.toy.replace("file", &[1; BYTES]);
    let mut mapping = Mapping::new(&mount.path("file"));
    assert_eq!((mapping.load(0), mapping.load(8192)), (1, 1));
    mount.toy.replace("file", &[2; BYTES]);
    assert_eq!((mapping.load(0), mapping.load(8192)), (1, 1), "cached pages stay");
    assert!(mount.notifier.invalidate_inode(node, 8192, 4096).unwrap());
    assert_eq!((mapping.load(0), mapping.load(8192)), (1, 2), "one page was dropped");
    assert!(mount.notifier.invalidate_inode(node, 0, 0).unwrap());
    assert_eq!(mapping.load(0), 2, "all pages were dropped");
    assert!(!mount.notifier.invalidate_inode(999, 0, 0).unwrap(), "an unknown node");
}

#[test]
fn stores_in_a_mapping_are_written_back_by_an_invalidation_and_by_the_end() {
    let Some(_alone) = alone() else { return };
    let mut mount = Mount::new(Toy::with_files(&["file"]));
    let node = mount.toy.replace("file", &[1; BYTES]);
    let mut mapping = Mapping::new(&mount.path("file"));
    mapping.store(4096, 7);
    assert!(mount.notifier.invalidate_inode(node, 0, 0).unwrap());
    assert_eq!(mount.toy.bytes("file")[4096], 7);
    mapping.store(8192, 9);
    mapping.end();
    mount.stopper.stop();
    assert_eq!(mount.ended(), Ended::Stopped);
    assert_eq!(mount.toy.bytes("file")[8192], 9);
    let state = mount.toy.look();
    assert!(state.cached_writes >= 2 && state.direct_writes == 0 && state.destroyed);
}

#[test]
fn names_and_pages_that_others_change_are_told_by_the_notifier() {
    let Some(_alone) = alone() else { return };
    let mount = Mount::new(Toy::with_files(&["file", "gone"]));
    assert!(std::fs::metadata(mount.path("gone")).is_ok());
    mount.toy.look().names.remove(&b"gone"[..]);
    assert!(std::fs::metadata(mount.path("gone")).is_ok(), "a cached name stays");
    assert!(mount.notifier.invalidate_entry(1, b"gone").unwrap());
    assert_eq!(std::fs::metadata(mount.path("gone")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!mount.notifier.invalidate_entry(1, b"never").unwrap());

    assert_eq!(std::fs::metadata(mount.path("file")).unwrap().len(), 10);
    let node = mount.toy.replace("file", &[1; BYTES]);
    assert_eq!(std::fs::metadata(mount.path("file")).unwrap().len(), 10, "cached attributes stay");
    assert!(mount.notifier.invalidate_inode(node, -1, 0).unwrap());
    assert_eq!(std::fs::metadata(mount.path("file")).unwrap().len(), BYTES as u64);
    assert!(mount.notifier.store(node, 4096, &[5; 4096]).unwrap());
    assert_eq!(std::fs::read(mount.path("file")).unwrap()[4096], 5);
    std::fs::metadata(mount.path("file")).unwrap();
    assert!(mount.notifier.delete(1, node, b"file").unwrap());
}

#[test]
fn a_notifier_outlives_its_session_and_does_nothing() {
    let Some(_alone) = alone() else { return };
    let mut mount = Mount::new(Toy::with_files(&["file"]));
    mount.stopper.stop();
    assert_eq!(mount.ended(), Ended::Stopped);
    assert!(!mount.notifier.invalidate_inode(2, 0, 0).unwrap());
}
