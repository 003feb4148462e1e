//! The namespace by command: `ls`, `stat`, `mkdir`, `rm`, `mv`, `ln`, `cat`, `df`, `layout`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use crate::common::Home;

#[test]
fn directories_are_made_listed_and_removed() {
    let home = Home::with_pool(2, "64MiB");
    home.run(["mkdir", "-p", "/a/b/c", "ramlace:/d"]).good();
    home.run(["mkdir", "-p", "/a/b/c"]).good();
    home.run(["mkdir", "/a"]).bad(&["/a"]);
    home.run(["mkdir", "/no/way"]).bad(&["/no/way"]);
    home.run(["mkdir", "-m", "700", "/p"]).good();
    assert_eq!(home.run(["ls"]).good().text(), "a\nd\np\n");
    assert_eq!(home.run(["ls", "ramlace:/a"]).good().text(), "b\n");
    assert!(home.run(["ls", "-l", "/"]).good().text().contains("drwx------"));
    home.run(["rm", "/a"]).bad(&["is a directory", "rm -r"]);
    home.run(["rm", "-r", "/a", "/d", "/p"]).good();
    home.run(["rm", "/a"]).bad(&["/a does not exist"]);
    home.run(["rm", "-f", "/a"]).good();
    home.run(["rm", "-r", "/"]).bad(&["/"]);
    assert_eq!(home.run(["ls"]).good().text(), "");
    home.run(["ls", "/nothing"]).bad(&["/nothing does not exist"]);
    home.run(["ls", "relative"]).bad(&["ramlace:/relative"]);
}

#[test]
fn one_failure_does_not_stop_the_others() {
    let home = Home::with_pool(1, "64MiB");
    home.run(["mkdir", "/a", "/b"]).good();
    home.run(["rm", "-r", "/a", "/missing", "/b"]).bad(&["/missing"]);
    assert_eq!(home.run(["ls"]).good().text(), "");
}

#[test]
fn strange_names_are_shown_escaped_and_kept() {
    let home = Home::with_pool(1, "64MiB");
    let name = OsStr::from_bytes(b"/caf\xe9\n\x1b[31m");
    home.run([OsStr::new("mkdir"), name]).good();
    assert_eq!(home.run(["ls"]).good().text(), "caf\\xe9\\n\\x1b[31m\n");
    let listed = home.run(["ls", "--json"]).good().json();
    assert_eq!(listed[0]["name_hex"], "636166e90a1b5b33316d");
    home.run([OsStr::new("rm"), OsStr::new("-r"), name]).good();
}

#[test]
fn files_are_described() {
    let home = Home::with_pool(4, "128MiB");
    home.run_with(["cp", "-", "/dev/null"], b"").bad(&["neither side is in a pool"]);
    home.run_with(["cp", "--width", "2", "--stripe-unit", "64KiB", "-", "ramlace:/f"], b"hello").good();
    let stat = home.run(["stat", "--json", "/f"]).good().json();
    assert_eq!((&stat["size"], &stat["kind"]), (&5.into(), &"file".into()));
    let layout = &stat["layout"];
    assert_eq!((&layout["stripe_unit"], &layout["width"]), (&65536.into(), &2.into()));
    assert_eq!(layout["servers"].as_array().unwrap().len(), 2);
    let text = home.run(["stat", "/f"]).good().text();
    assert!(text.contains("5 bytes") && text.contains("width 2"), "{text}");
    home.run(["stat", "/f", "/g"]).bad(&["/g does not exist"]);
    home.run(["ln", "-s", "f", "/link"]).good();
    assert_eq!(home.run(["stat", "--json", "/link"]).good().json()["target"], "f");
    assert_eq!(home.run(["stat", "-L", "--json", "/link"]).good().json()["size"], 5);
    assert!(home.run(["ls", "-l"]).good().text().contains("link -> f"));
    assert_eq!(home.run(["cat", "/link", "ramlace:/f"]).good().text(), "hellohello");
    home.run(["cat", "/"]).bad(&["directory"]);
    home.run(["cat", "/missing", "/f"]).bad(&["/missing"]);
}

// SEMANTICS 101.3
#[test]
fn files_and_directories_get_other_names() {
    let home = Home::with_pool(3, "96MiB");
    home.run(["mkdir", "/a", "/b", "/c"]).good();
    for name in ["f", "g"] {
        home.run_with(["cp", "-", &format!("ramlace:/a/{name}")], name.as_bytes()).good();
    }
    home.run(["mv", "ramlace:/a/f", "ramlace:/b/h"]).good();
    assert_eq!(home.run(["cat", "/b/h"]).good().text(), "f");
    home.run(["mv", "-n", "ramlace:/a/g", "ramlace:/b/h"]).bad(&["/b/h", "exists"]);
    home.run(["mv", "--exchange", "ramlace:/a/g", "ramlace:/b/h"]).good();
    assert_eq!(home.run(["cat", "/a/g", "/b/h"]).good().text(), "fg");
    home.run(["mv", "ramlace:/a/g", "ramlace:/b/h", "ramlace:/c"]).good();
    assert_eq!(home.run(["ls", "/c"]).good().text(), "g\nh\n");
    home.run(["mv", "ramlace:/c/g", "ramlace:/c/h", "ramlace:/nothing"]).bad(&["/nothing is no directory"]);
    home.run(["mv", "-T", "ramlace:/a", "ramlace:/b"]).good();
    home.run(["mv", "ramlace:/c", "ramlace:/b"]).good();
    assert_eq!(home.run(["ls", "/b/c"]).good().text(), "g\nh\n");
    home.run(["mv", "ramlace:/b", "ramlace:/b/c"]).bad(&["into itself"]);
    home.run(["mv", "ramlace:/missing", "ramlace:/b"]).bad(&["/missing does not exist"]);
    home.run(["mv", "ramlace:/", "ramlace:/b"]).bad(&["/"]);
    let local = home.write("local", b"x");
    for words in
        [["mv", "/b/c/g", "ramlace:/x"], ["mv", "ramlace:/b/c/g", "/x"], ["mv", "local", "ramlace:/x"]]
    {
        home.run(words).bad(&["is a file of this machine, as for cp", "ramlace:/"]);
    }
    assert!(local.exists());
    assert_eq!(home.run(["mv", "--json", "ramlace:/b/c/g", "ramlace:/x"]).good().json()["moved"], 1);
}

#[test]
fn a_file_has_several_names() {
    let home = Home::with_pool(3, "96MiB");
    home.run(["mkdir", "/a", "/b"]).good();
    home.run_with(["cp", "-", "ramlace:/a/f"], b"once").good();
    assert_eq!(home.run(["ln", "--json", "/a/f", "/b/g"]).good().json()["links"], 2);
    home.run(["ln", "/a/f", "/b/g"]).bad(&["/b/g", "there already"]);
    let said = home.run(["ln", "/a", "/b/h"]).bad(&["/b/h", "a directory has one name"]).stderr;
    assert!(!said.contains("inode"), "{said}");
    home.run(["rm", "/a/f"]).good();
    assert_eq!(home.run(["cat", "/b/g"]).good().text(), "once");
    assert!(home.run(["stat", "--json", "/b/g"]).good().json()["size"] == 4);
}

#[test]
fn directories_hand_their_layout_down() {
    let home = Home::with_pool(4, "128MiB");
    home.run(["mkdir", "/d"]).good();
    home.run(["layout", "set", "/d", "--stripe-unit", "128KiB", "--width", "3"]).good();
    assert!(home.run(["layout", "get", "/d"]).good().text().contains("stripe unit 128 KiB, width 3"));
    home.run_with(["cp", "-", "ramlace:/d/f"], b"x").good();
    let layout = home.run(["layout", "get", "--json", "/d/f"]).good().json();
    assert_eq!((&layout["stripe_unit"], &layout["width"]), (&131_072.into(), &3.into()));
    home.run(["layout", "set", "/d/f", "--width", "1"]).bad(&["fixed when it was created"]);
    home.run_with(["cp", "--stripe-unit", "100000", "-", "ramlace:/odd"], b"x").bad(&["power of two"]);
    home.run(["layout", "get", "/missing"]).bad(&["/missing"]);
    home.run(["layout", "set", "/d", "--width", "5"]).bad(&["/d: ", "5 lanes", "4 servers"]);
    assert!(home.run(["layout", "get", "/d"]).good().text().contains("width 3"));
    home.run(["layout", "set", "/d", "--stripe-unit", "3MiB"])
        .bad(&["unit of 3 MiB", "from 64 KiB to 1 GiB"]);
}

#[test]
fn what_is_wrong_with_an_attribute_names_the_path() {
    let home = Home::with_pool(1, "64MiB");
    home.run_with(["cp", "-", "ramlace:/f"], b"x").good();
    for words in [
        &["get", "/f", "user.x"][..],
        &["remove", "/f", "user.x"],
        &["set", "/f", "user.x", "y", "--replace"],
    ] {
        let said = home.run([&["xattr"], words].concat()).bad(&["/f: it has no attribute 'user.x'"]).stderr;
        assert!(!said.contains("inode"), "{said}");
    }
}

#[test]
fn one_is_no_plural() {
    let home = Home::with_pool(1, "64MiB");
    home.run_with(["cp", "-", "ramlace:/f"], b"x").good();
    assert!(home.run(["status"]).good().text().contains("1 of 1 server answers"));
    assert!(home.run(["stat", "/f"]).good().text().contains("1 byte (1 B)"));
    assert!(home.run(["stat", "/"]).good().text().contains("1 entry\n"));
    let checked = home.run(["check"]).good().text();
    assert!(checked.contains("1 server, ") && checked.contains("1 entry and 0 lanes"), "{checked}");
}

#[test]
fn a_full_pool_advises_what_can_be_done() {
    let home = Home::with_pool(1, "64MiB");
    let said = home.run_with(["cp", "-", "ramlace:/f"], &crate::common::noise(80 << 20)).stderr;
    assert!(
        said.contains("is full") && said.contains("--memory") && !said.contains("add a server"),
        "{said}"
    );
}

#[test]
fn room_is_told() {
    let home = Home::with_pool(2, "64MiB");
    let room = home.run(["df", "--json"]).good().json();
    assert_eq!(room["total_bytes"], 64 << 20);
    home.run_with(["cp", "-", "ramlace:/f"], &crate::common::noise(3 << 20)).good();
    let after = home.run(["df", "--json"]).good().json();
    let used = |value: &serde_json::Value| value["used_bytes"].as_u64().unwrap();
    assert!(used(&after) >= used(&room) + (3 << 20), "{room} {after}");
    assert!(home.run(["df"]).good().text().contains("64 MiB"));
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let home = Home::with_pool(1, "64MiB");
    home.run_with(["cp", "-", "ramlace:/f"], &crate::common::noise(8 << 20)).good();
    for arguments in [&["cat", "/f"][..], &["cp", "ramlace:/f", "-"]] {
        let mut child =
            home.command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        assert_eq!((done.status.code(), &done.stderr[..]), (Some(141), &b""[..]), "{arguments:?}");
    }
}
