//! `cp` in, out and within.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::common::{Home, assert_same, noise, there};

#[test]
fn a_big_file_comes_back_as_it_went() {
    let home = Home::with_pool(4, "320MiB");
    let bytes = noise(100_000_001);
    let big = home.write("big", &bytes);
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    fs::File::options().write(true).open(&big).unwrap().set_modified(time).unwrap();
    fs::set_permissions(&big, fs::Permissions::from_mode(0o640)).unwrap();
    home.run(["cp", "big", "ramlace:/big"]).good();
    let stat = home.run(["stat", "--json", "/big"]).good().json();
    assert_eq!((&stat["size"], &stat["mode"]), (&bytes.len().into(), &0o640.into()));
    assert_eq!(stat["modified_ns"], 1_234_567_890_123_456_789_i64);
    home.run(["cp", "-j", "3", "ramlace:/big", "out"]).good();
    assert_same(&fs::read(home.path("out")).unwrap(), &bytes, "copied out");
    let out = fs::metadata(home.path("out")).unwrap();
    assert_eq!((out.mode() & 0o777, out.modified().unwrap()), (0o640, time));
    assert_same(&home.run(["cp", "ramlace:/big", "-"]).good().stdout, &bytes, "to standard output");
    assert_same(&home.run(["cat", "/big"]).good().stdout, &bytes, "cat");
    home.run(["cp", "ramlace:/big", "ramlace:/again"]).good();
    home.run(["rm", "/big"]).good();
    home.run(["cp", "ramlace:/again", "out2"]).good();
    assert_same(&fs::read(home.path("out2")).unwrap(), &bytes, "copied within and out");
}

#[test]
fn the_long_way_round_gives_the_same_bytes() {
    let home = Home::with_pool(3, "96MiB");
    let bytes = noise(20_000_003);
    home.write("f", &bytes);
    for arguments in [["cp", "f", "ramlace:/f"], ["cp", "ramlace:/f", "g"]] {
        let done = home.command().args(arguments).env("RAMLACE_LOCAL", "off").output().unwrap();
        crate::common::Done::from(done).good();
    }
    assert_same(&fs::read(home.path("g")).unwrap(), &bytes, "over TCP");
}

#[test]
fn standard_input_becomes_a_file() {
    let home = Home::with_pool(2, "96MiB");
    for length in [0, 1, 65_536, 9_000_001] {
        let bytes = noise(length);
        home.run_with(["cp", "-", "ramlace:/f"], &bytes).good();
        assert_same(&home.run(["cp", "ramlace:/f", "-"]).good().stdout, &bytes, "through pipes");
    }
    home.run(["mkdir", "/d"]).good();
    home.run_with(["cp", "-", "ramlace:/d"], b"x").bad(&["is a directory", "name the file"]);
    home.run_with(["cp", "-", "-"], b"x").bad(&["neither side is in a pool"]);
    home.run_with(["cp", "-", "f", "ramlace:/d"], b"x").bad(&["'-' is copied alone"]);
}

/// A tree with what trees have.
fn make_tree(home: &Home) {
    let tree = home.path("tree");
    fs::create_dir_all(tree.join("deep/er/est")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("none"), b"").unwrap();
    fs::write(tree.join("deep/er/est/one"), b"1").unwrap();
    fs::write(tree.join("deep/part"), noise(3_000_000)).unwrap();
    fs::write(tree.join("deep").join(std::ffi::OsStr::from_bytes(b"caf\xe9 \n")), b"strange").unwrap();
    for number in 0..200 {
        fs::write(tree.join(format!("deep/{number}")), noise(number * 37)).unwrap();
    }
    fs::write(tree.join("run"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("deep/part", tree.join("link")).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("dangling")).unwrap();
    fs::set_permissions(tree.join("deep/er"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(tree.join("empty"), fs::Permissions::from_mode(0o555)).unwrap();
}

/// Every entry below, with kind, mode, time and content.
fn describe(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut stack = vec![root.to_owned()];
    while let Some(path) = stack.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().escape_ascii().to_string();
        let what = if metadata.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if metadata.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            format!("dir {:o}", metadata.mode())
        } else {
            let sum = fs::read(&path)
                .unwrap()
                .iter()
                .fold(0u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
            format!(
                "file {:o} {} {sum:x} {}.{}",
                metadata.mode(),
                metadata.len(),
                metadata.mtime(),
                metadata.mtime_nsec()
            )
        };
        lines.push(format!("{name}: {what}"));
    }
    lines.sort();
    lines
}

#[test]
fn a_tree_comes_back_as_it_went() {
    let home = Home::with_pool(3, "96MiB");
    make_tree(&home);
    home.run(["cp", "tree", "ramlace:/t"]).bad(&["is a directory", "cp -r"]);
    home.run(["cp", "-r", "tree", "ramlace:/t"]).good();
    home.run(["cp", "-r", "ramlace:/t", "back"]).good();
    assert_eq!(describe(&home.path("back")), describe(&home.path("tree")));
    // Into a directory that is there, and once more over what is there now.
    home.run(["mkdir", "/d"]).good();
    home.run(["cp", "-r", "tree", "ramlace:/d"]).good();
    home.run(["cp", "-r", "tree", "ramlace:/d"]).good();
    home.run(["cp", "-r", "ramlace:/d/tree", "ramlace:/within"]).good();
    home.run(["cp", "-r", "ramlace:/within", "back2"]).good();
    assert_eq!(describe(&home.path("back2")), describe(&home.path("tree")));
    let report = home.run(["cp", "-r", "--json", "tree", "ramlace:/json"]).good().json();
    assert_eq!((&report["errors"], &report["files"]), (&0.into(), &212.into()));
}

#[test]
fn several_files_need_a_directory() {
    let home = Home::with_pool(1, "64MiB");
    home.write("a", b"A");
    home.write("b", b"B");
    home.run(["cp", "a", "b", "ramlace:/x"]).bad(&["ramlace:/x is no directory"]);
    home.run(["cp", "a", "b", "ramlace:/"]).good();
    assert_eq!(home.run(["cat", "/a", "/b"]).good().text(), "AB");
    home.run(["cp", "ramlace:/a", "ramlace:/b", "."]).good();
    home.run(["cp", "a", "missing", "ramlace:/"]).bad(&["missing does not exist"]);
    home.run(["cp", "a", "b"]).bad(&["neither side is in a pool"]);
    fs::create_dir(home.path("other")).unwrap();
    home.write("other/a", b"other");
    home.run(["cp", "a", "other/a", "ramlace:/"]).bad(&["a and other/a would both become ramlace:/a"]);
    assert_eq!(home.run(["cat", "/a"]).good().text(), "A");
    home.run(["cp", "a", "ramlace:/no/where"]).bad(&["/no/where"]);
}

// SEMANTICS 111.3
#[test]
fn directories_and_files_do_not_overwrite_each_other() {
    let home = Home::with_pool(1, "64MiB");
    fs::create_dir_all(home.path("src/x")).unwrap();
    home.write("src/y", b"file");
    home.run(["mkdir", "-p", "/d/src/y"]).good();
    home.run_with(["cp", "-", "ramlace:/d/src/x"], b"file").good();
    let done = home.run(["cp", "-r", "src", "ramlace:/d"]);
    done.bad(&["ramlace:/d/src/y is a directory", "ramlace:/d/src/x is there and no directory"]);
    assert_eq!(home.run(["cat", "/d/src/x"]).good().text(), "file");
    home.run(["cp", "-r", "ramlace:/d", "ramlace:/d"]).bad(&["not copied into itself"]);
    home.run_with(["cp", "-", "ramlace:/f"], b"file").good();
    home.run(["cp", "ramlace:/f", "ramlace:/f"]).bad(&["the same file"]);
    assert_eq!(home.run(["cat", "/f"]).good().text(), "file");
    home.run(["cp", "--width", "1", "src/y", "ramlace:/f"]).bad(&["layout is fixed"]);
    home.run_with(["cp", "--width", "1", "-", "ramlace:/f"], b"other").bad(&["layout is fixed"]);
    assert_eq!(home.run(["cat", "/f"]).good().text(), "file");
}

#[test]
fn a_copy_overwrites_all_of_a_file() {
    let home = Home::with_pool(2, "64MiB");
    home.run_with(["cp", "-", "ramlace:/f"], &noise(5_000_000)).good();
    let short = home.write("short", &noise(1000));
    home.run(["cp", "short", "ramlace:/f"]).good();
    assert_same(&home.run(["cat", "/f"]).good().stdout, &fs::read(short).unwrap(), "overwritten");
    home.run(["ln", "-s", "target", "/dangling"]).good();
    home.run(["cp", "short", "ramlace:/dangling"]).good();
    assert_eq!(home.run(["stat", "--json", "/target"]).good().json()["size"], 1000);
}

#[test]
fn a_full_pool_says_what_was_written_and_goes_on() {
    let home = Home::with_pool(2, "64MiB");
    home.run_with(["cp", "-", "ramlace:/small"], b"small").good();
    home.write("big", &noise(100_000_000));
    home.run(["cp", "big", "ramlace:/big"]).bad(&["had been written", "partial copy was removed"]);
    home.run(["stat", "/big"]).bad(&["does not exist"]);
    let bytes = noise(100_000_000);
    home.run_with(["cp", "-", "ramlace:/big"], &bytes).bad(&["had been written", "partial copy was removed"]);
    // It is made where a link points that leads nowhere, and the link stays.
    home.run(["ln", "-s", "target", "/link"]).good();
    home.run_with(["cp", "-", "ramlace:/link"], &bytes).bad(&["/link was overwritten and is incomplete"]);
    home.run(["rm", "/link", "/target"]).good();
    // What was there is named, not removed.
    home.run(["cp", "big", "ramlace:/small"]).bad(&["overwritten and is incomplete"]);
    home.run(["rm", "/small"]).good();
    home.write("fits", &noise(20_000_000));
    home.run(["cp", "fits", "ramlace:/fits"]).good();
    assert_same(&home.run(["cat", "/fits"]).good().stdout, &noise(20_000_000), "after the pool was full");
}

#[test]
fn holes_stay_holes() {
    let home = Home::with_pool(2, "64MiB");
    let length = 200 << 20;
    let sparse = fs::File::create(home.path("sparse")).unwrap();
    sparse.set_len(length).unwrap();
    std::os::unix::fs::FileExt::write_at(&sparse, b"middle", 100 << 20).unwrap();
    // 200 MiB do not fit the pool; the little that is no hole does.
    home.run(["cp", "sparse", "ramlace:/sparse"]).good();
    home.run(["cp", "ramlace:/sparse", "back"]).good();
    let back = fs::metadata(home.path("back")).unwrap();
    assert_eq!(back.len(), length);
    assert!(back.blocks() * 512 < 4 << 20, "{} bytes on disk", back.blocks() * 512);
    assert_same(&fs::read(home.path("back")).unwrap(), &fs::read(home.path("sparse")).unwrap(), "sparse");
    // A small file that ends in a hole keeps its length.
    fs::File::create(home.path("zeros")).unwrap().set_len(300_000).unwrap();
    home.run(["cp", "zeros", "ramlace:/zeros"]).good();
    home.run(["cp", "ramlace:/zeros", "zeros2"]).good();
    assert_same(&fs::read(home.path("zeros2")).unwrap(), &vec![0; 300_000], "zeros");
}

#[test]
fn pipes_devices_and_proc_are_read_to_their_end() {
    let home = Home::with_pool(1, "64MiB");
    home.run(["cp", "/proc/self/status", "ramlace:/status"]).good();
    assert!(home.run(["cat", "/status"]).good().text().contains("VmRSS"));
    home.run(["cp", "ramlace:/status", "/dev/null"]).good();
    home.run(["cp", "/dev/null", "ramlace:/empty"]).good();
    assert_eq!(home.run(["stat", "--json", "/empty"]).good().json()["size"], 0);
    fs::create_dir(home.path("d")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(home.path("d/socket")).unwrap();
    home.write("d/file", b"x");
    home.run(["cp", "-r", "d", "ramlace:/d"]).bad(&["socket is no file"]);
    assert_eq!(home.run(["cat", "/d/file"]).good().text(), "x");
    assert!(there(&home.path("d/file")));
}

// SEMANTICS 111.3
/// Both ways this once destroyed what was to be copied, or filled the pool.
#[test]
fn what_is_reached_through_a_mount_is_known_again() {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/fuse") {
        println!("not run: /dev/fuse cannot be opened ({error})");
        return;
    }
    let home = Home::with_pool(2, "64MiB");
    fs::create_dir_all(home.path("tree/mount")).unwrap();
    home.write("tree/file", b"here");
    home.run(["mkdir", "-p", "/data/sub"]).good();
    for path in ["ramlace:/data/x", "ramlace:/data/sub/y"] {
        home.run_with(["cp", "-", path], b"precious").good();
    }
    let mount = home.path("tree/mount");
    home.run(["mount", mount.to_str().unwrap()]).good();
    std::os::unix::fs::symlink("tree/mount/data/x", home.path("x")).unwrap();
    home.run(["cp", "ramlace:/data/x", "x"]).bad(&["x is the same file as the source"]);
    home.run(["cp", "x", "ramlace:/data/x"]).bad(&["ramlace:/data/x is the same file as the source"]);
    assert_eq!(home.run(["cat", "/data/x"]).good().text(), "precious");
    home.run(["cp", "-r", "tree", "ramlace:/all"]).bad(&["lies in its own source"]);
    assert_eq!(home.run(["cat", "/all/file", "/all/mount/data/x"]).good().text(), "hereprecious");
    home.run(["stat", "/all/mount/all"]).bad(&["does not exist"]);
    // What is in a directory, and not the directory, as elsewhere.
    home.run(["mkdir", "/d"]).good();
    home.run(["cp", "-r", "tree/mount/data/sub/.", "ramlace:/d"]).good();
    assert_eq!(home.run(["ls", "/d"]).good().text(), "y\n");
    home.run(["unmount", mount.to_str().unwrap()]).good();
}

// SEMANTICS 111.5
#[test]
fn a_copy_that_is_interrupted_says_so() {
    let home = Home::with_pool(1, "32MiB");
    home.run(["mkdir", "/tree"]).good();
    home.run_with(["cp", "-", "ramlace:/tree/file"], b"content").good();
    // The copy waits until somebody reads.
    fs::create_dir_all(home.path("out/tree")).unwrap();
    let pipe = home.path("out/tree/file");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut command = home.command();
    command.args(["cp", "-r", "ramlace:/tree", "out"]).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let catches = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        assert!(!status.contains("State:\tZ"), "it has ended: {status}");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (libc::SIGTERM - 1)) != 0
    };
    let wait = |wanted| {
        while catches() != wanted {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait(true);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // Now it has heard of it: a second one would end it at once.
    wait(false);
    let reader = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
    let done = crate::common::Done::from(child.wait_with_output().unwrap());
    assert_eq!(done.code, None, "a signal ends it: {done:?}");
    assert!(done.stderr.contains("ramlace: interrupted: "), "{done:?}");
    drop(reader);
}

// SEMANTICS 111.1
/// This once made a user who copied again overwrite a file of their own: through a link that an earlier copy
/// had brought along.
#[test]
fn a_copy_writes_through_no_link_below_the_directory_that_was_named() {
    let home = Home::with_pool(2, "96MiB");
    let (mine, private) = (home.write("mine", b"precious"), home.path("private"));
    fs::create_dir(&private).unwrap();
    let link = |target: &Path, path: &str| home.run(["ln", "-s", target.to_str().unwrap(), path]).good();
    home.run(["mkdir", "/t"]).good();
    link(&mine, "/t/file");
    link(&private, "/t/dir");
    home.run(["cp", "-r", "ramlace:/t", "."]).good();
    assert!(home.path("t/file").is_symlink() && home.path("t/dir").is_symlink());

    home.run(["rm", "/t/file", "/t/dir"]).good();
    home.run_with(["cp", "-", "ramlace:/t/file"], b"another's").good();
    home.run(["mkdir", "/t/dir"]).good();
    home.run_with(["cp", "-", "ramlace:/t/dir/new"], b"another's").good();
    home.run(["cp", "-r", "ramlace:/t", "."]).bad(&[
        "will not copy ramlace:/t/file through the symbolic link",
        "t/dir is there and no directory; it stays, ramlace:/t/dir is not copied",
    ]);
    home.run(["cp", "ramlace:/t/file", "t"])
        .bad(&["will not copy ramlace:/t/file through the symbolic link"]);
    assert_eq!(fs::read(&mine).unwrap(), b"precious");
    assert_eq!(fs::read_dir(&private).unwrap().count(), 0);
    // A link that was named is what the user means.
    home.run(["cp", "ramlace:/t/file", "t/file"]).good();
    assert_eq!(fs::read(&mine).unwrap(), b"another's");

    // The same the other way round: a link that another user put into the pool.
    home.run(["mkdir", "/shared"]).good();
    home.run_with(["cp", "-", "ramlace:/secret"], b"precious").good();
    link(Path::new("/secret"), "/shared/mine");
    home.run(["cp", "mine", "ramlace:/shared"]).bad(&["will not copy mine through the symbolic link"]);
    assert_eq!(home.run(["cat", "/secret"]).good().stdout, b"precious");
}

// SEMANTICS 111.2
#[test]
fn what_a_copy_makes_obeys_the_umask() {
    let home = Home::with_pool(1, "32MiB");
    fs::create_dir(home.path("tree")).unwrap();
    let made = home.path("tree/file");
    fs::write(&made, b"x").unwrap();
    fs::set_permissions(&made, fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(home.path("tree"), fs::Permissions::from_mode(0o777)).unwrap();
    let with_umask = |arguments: &[&str]| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "umask 027; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_ramlace")]);
        shell.args(arguments).current_dir(home.path("")).env("XDG_RUNTIME_DIR", home.path(""));
        shell.env_remove("RAMLACE_POOL").env_remove("RAMLACE_SECRET_FILE").env_remove("RAMLACE_LOCAL");
        assert!(shell.status().unwrap().success(), "{arguments:?}");
    };
    with_umask(&["cp", "-r", "tree", "ramlace:/t"]);
    with_umask(&["chmod", "666", "/t/file"]);
    with_umask(&["cp", "-r", "ramlace:/t", "back"]);
    with_umask(&["cp", "-r", "ramlace:/t", "back"]);
    with_umask(&["cp", "ramlace:/t/file", "alone"]);
    let mode = |name: &str| home.path(name).metadata().unwrap().mode() & 0o777;
    assert_eq!(["back", "back/t"].map(mode), [0o750; 2]);
    assert_eq!(["back/file", "back/t/file", "alone"].map(mode), [0o640; 3]);
}
