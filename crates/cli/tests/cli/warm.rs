//! `warm`: files of a mount are in this machine's memory afterwards.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::common::{Home, noise};

#[test]
fn what_lies_on_no_mount_is_refused() {
    let home = Home::new();
    let file = home.write("x", b"x");
    home.run(["warm", "ramlace:/x"]).bad(&["ramlace:/x is on no mount here", "ramlace mount DIR"]);
    home.run(["warm", file.to_str().unwrap()]).bad(&["lies on no mount", "ramlace mount DIR"]);
    home.run(["warm", "/nothing"]).bad(&["/nothing"]);
}

/// How many of a file's pages are in memory, and how many it has. A mapping that is not accessed brings none.
fn pages_in_memory(path: &Path) -> (usize, usize) {
    let file = File::open(path).unwrap();
    let length = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let mut pages = vec![0_u8; length.div_ceil(4096)];
    // SAFETY: a new mapping at an address that the kernel chooses, unmapped below and not read.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    // SAFETY: the mapping is `length` bytes long, and the vector has a byte for each of its pages.
    let told = unsafe { libc::mincore(at, length, pages.as_mut_ptr()) };
    assert_eq!(told, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: as it was mapped; nothing points into it.
    unsafe { libc::munmap(at, length) };
    (pages.iter().filter(|page| **page & 1 != 0).count(), pages.len())
}

/// Warm until all pages are there: a kernel may take a page back that was not used for a moment.
fn warm_all(home: &Home, mount: &Path, files: &[PathBuf]) {
    for _ in 0..10 {
        let done = home.run(["warm", "--json", mount.join("d").to_str().unwrap(), "/nothing"]);
        // One path that is missing does not keep the others cold.
        assert_eq!(done.code, Some(1), "{done:?}");
        assert_eq!(
            (&done.json()["files"], &done.json()["bytes"]),
            (&2.into(), &(2 * ((9 << 20) + 5)).into())
        );
        if files.iter().all(|file| pages_in_memory(file) == (2305, 2305)) {
            return;
        }
    }
    panic!("{:?}", files.iter().map(|file| pages_in_memory(file)).collect::<Vec<_>>());
}

#[test]
fn files_of_a_mount_are_in_memory_afterwards() {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        println!("not run: /dev/fuse cannot be opened ({error})");
        return;
    }
    let home = Home::with_pool(2, "128MiB");
    let mount = home.path("mount");
    std::fs::create_dir(&mount).unwrap();
    home.run(["mkdir", "-p", "/d/sub"]).good();
    for name in ["a", "sub/b"] {
        home.run_with(["cp", "-", &format!("ramlace:/d/{name}")], &noise((9 << 20) + 5)).good();
    }
    home.run(["mount", mount.to_str().unwrap()]).good();
    let files = ["d/a", "d/sub/b"].map(|name| mount.join(name));
    for file in &files {
        assert_eq!(pages_in_memory(file), (0, 2305), "{}", file.display());
    }
    warm_all(&home, &mount, &files);
    home.run(["unmount", mount.to_str().unwrap()]).good();
}
