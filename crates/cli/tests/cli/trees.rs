//! Trees by command: `find`, `du`, `chmod`, `chown`, `touch`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use crate::common::{Done, Home, kill, noise};

/// /data with two files and a link, and two more directories below it.
fn home_with_tree() -> Home {
    let home = Home::with_pool(2, "128MiB");
    home.run(["mkdir", "-p", "/data/sub/deep", "/empty"]).good();
    home.run_with(["cp", "-", "ramlace:/data/a.npy"], &noise(1500)).good();
    home.run_with(["cp", "-", "ramlace:/data/sub/B.NPY"], &noise(3 << 20)).good();
    home.run_with(["cp", "-", "ramlace:/data/sub/deep/c.txt"], b"").good();
    home.run(["ln", "-s", "sub", "/data/link"]).good();
    home
}

/// The lines of standard output, sorted: the order of a listing is the pool's own.
fn lines(done: &Done) -> Vec<String> {
    let mut lines: Vec<String> = done.text().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn found(home: &Home, words: &str) -> Vec<String> {
    lines(&home.run(words.split_whitespace()).good())
}

fn mode(home: &Home, path: &str) -> String {
    let mode = home.run(["stat", "--json", path]).good().json()["mode"].as_u64().unwrap();
    format!("{mode:o}")
}

fn number(home: &Home, path: &str, key: &str) -> i64 {
    home.run(["stat", "--json", path]).good().json()[key].as_i64().unwrap()
}

#[test]
fn find_finds_by_every_test() {
    let home = home_with_tree();
    let all = [
        "/",
        "/data",
        "/data/a.npy",
        "/data/link",
        "/data/sub",
        "/data/sub/B.NPY",
        "/data/sub/deep",
        "/data/sub/deep/c.txt",
        "/empty",
    ];
    assert_eq!(found(&home, "find"), all);
    for (words, expected) in [
        ("find /data --name *.npy", &["/data/a.npy"][..]),
        ("find /data -iname *.npy", &["/data/a.npy", "/data/sub/B.NPY"]),
        ("find / --name data", &["/data"]),
        ("find /data/ -name data", &["/data/"]),
        ("find / -name / -type d", &["/"]),
        ("find ramlace:/data/sub --path *deep/*", &["ramlace:/data/sub/deep/c.txt"]),
        ("find / -type l", &["/data/link"]),
        ("find / --type l,f -name [!ac]*", &["/data/link", "/data/sub/B.NPY"]),
        ("find / -type d -mindepth 1 -maxdepth 1", &["/data", "/empty"]),
        ("find /data -maxdepth 0", &["/data"]),
        ("find /data/a.npy /empty", &["/data/a.npy", "/empty"]),
        ("find /data -size +2M", &["/data/sub/B.NPY"]),
        ("find /data -size 3", &["/data/a.npy"]),
        ("find /data -size -1", &["/data/sub/deep/c.txt"]),
        ("find /data -type f -size -1501c", &["/data/a.npy", "/data/sub/deep/c.txt"]),
        ("find /data/link", &["/data/link"]),
        ("find /data/link/ -type f", &["/data/link/B.NPY", "/data/link/deep/c.txt"]),
    ] {
        assert_eq!(found(&home, words), expected, "{words}");
    }
}

#[test]
fn find_knows_what_is_older() {
    let home = home_with_tree();
    home.run(["touch", "-d", "10 days ago", "/data/a.npy"]).good();
    home.run(["touch", "-d", "2 hours ago", "/data/sub/B.NPY"]).good();
    for (words, expected) in [
        ("find / -type f -mtime +7", &["/data/a.npy"][..]),
        ("find / -type f -mtime 10", &["/data/a.npy"]),
        ("find / -type f -mtime -1", &["/data/sub/B.NPY", "/data/sub/deep/c.txt"]),
        ("find / -type f -mmin +60 -mtime -5", &["/data/sub/B.NPY"]),
        ("find / -type f -newer /data/sub/B.NPY", &["/data/sub/deep/c.txt"]),
        ("find / -type f --newermt yesterday -mmin +60", &["/data/sub/B.NPY"]),
    ] {
        assert_eq!(found(&home, words), expected, "{words}");
    }
    home.run(["find", "/", "--newer", "/nothing"]).bad(&["/nothing does not exist"]);
    home.run(["find", "/", "--newermt", "soon"]).bad(&["'soon' is no date", "2026-01-31"]);
}

#[test]
fn find_shows_strange_names_and_gives_exact_ones() {
    let home = Home::with_pool(2, "64MiB");
    let name = b"/d/caf\xe9\n\x1b[31m";
    home.run([OsStr::new("mkdir"), OsStr::new("-p"), OsStr::from_bytes(name)]).good();
    home.run(["mkdir", "/d/é"]).good();
    assert_eq!(found(&home, "find /d -mindepth 1"), ["/d/caf\\xe9\\n\\x1b[31m", "/d/é"]);
    assert_eq!(home.run(["find", "/d", "-name", "c*", "-print0"]).good().stdout, [name, &b"\0"[..]].concat());
    let json = home.run(["find", "/d", "--name", "c*", "--json"]).good().json();
    assert_eq!(json[0]["path_hex"], "2f642f636166e90a1b5b33316d");
    assert_eq!(found(&home, "find /d -mindepth 1 -name ?"), ["/d/é"]);
    // Each byte of the pattern changed in turn finds something else: nothing.
    let exact = |pattern: &[u8]| {
        let words = [OsStr::new("find"), OsStr::new("/d"), OsStr::new("--name"), OsStr::from_bytes(pattern)];
        home.run(words).good().text().lines().count()
    };
    let pattern = b"caf\xe9\n\x1b\\[31m";
    assert_eq!(exact(pattern), 1);
    for at in (0..pattern.len()).filter(|at| pattern[*at] != b'\\') {
        let mut other = pattern.to_vec();
        other[at] ^= 0x01;
        assert_eq!(exact(&other), 0, "{other:?}");
    }
}

#[test]
fn find_goes_on_and_tells_programs() {
    let home = home_with_tree();
    let done = home.run(["find", "/nothing", "/empty"]).bad(&["/nothing does not exist"]);
    assert_eq!(done.text(), "/empty\n");
    let json = home.run(["find", "/data", "--type", "l,f", "--json"]).good().json();
    let mut sizes: Vec<(String, u64)> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["path"].as_str().unwrap().to_owned(), entry["size"].as_u64().unwrap()))
        .collect();
    sizes.sort();
    let expected =
        [("/data/a.npy", 1500), ("/data/link", 3), ("/data/sub/B.NPY", 3 << 20), ("/data/sub/deep/c.txt", 0)];
    assert_eq!(sizes, expected.map(|(path, size)| (path.to_owned(), size)));
    let link = json.as_array().unwrap().iter().find(|entry| entry["kind"] == "symlink").unwrap();
    assert_eq!(link["target"], "sub");
    assert_eq!(home.run(["find", "/empty", "--type", "f", "--json"]).good().json(), serde_json::json!([]));
    for wrong in ["--size=x", "--mtime=x", "--type=x", "--maxdepth=-1", "-nonsense"] {
        assert_eq!(home.run(["find", "/", wrong]).code, Some(2), "{wrong}");
    }
    home.run(["find", "relative"]).bad(&["ramlace:/relative"]);
}

#[test]
fn du_adds_up() {
    let home = home_with_tree();
    let big = 3 << 20;
    for (words, expected) in [
        ("du -b /data", vec![(big, "/data/sub"), (0, "/data/sub/deep"), (big + 1503, "/data")]),
        ("du -sb /data /empty", vec![(0, "/empty"), (big + 1503, "/data")]),
        ("du -b -d 1 /data", vec![(big, "/data/sub"), (big + 1503, "/data")]),
        (
            "du -sbc /data/sub /data/a.npy",
            vec![(1500, "/data/a.npy"), (big, "/data/sub"), (big + 1500, "total")],
        ),
        (
            "du -ab /data/sub",
            vec![
                (0, "/data/sub/deep"),
                (0, "/data/sub/deep/c.txt"),
                (big, "/data/sub"),
                (big, "/data/sub/B.NPY"),
            ],
        ),
        ("du -s --apparent-size ramlace:/data", vec![(3074, "ramlace:/data")]),
        ("du -s /data/a.npy", vec![(2, "/data/a.npy")]),
        ("du -b /data/link", vec![(3, "/data/link")]),
        ("du -sb", vec![(big + 1503, "/")]),
    ] {
        let mut expected: Vec<String> =
            expected.into_iter().map(|(size, path)| format!("{size}\t{path}")).collect();
        expected.sort();
        assert_eq!(found(&home, words), expected, "{words}");
    }
    assert_eq!(found(&home, "du -sH /data/sub"), ["3 MiB\t/data/sub"]);
    // What is in a directory stands before it, as du prints it.
    assert!(home.run(["du", "/data"]).good().text().ends_with("\t/data\n"));
}

#[test]
fn du_takes_files_of_two_pools_for_two() {
    // The first file of each has the same number.
    let home = Home::with_pool(1, "32MiB");
    home.run(["up", "--pool", "other", "--servers", "1", "--memory", "32MiB", "--no-reserve"]).good();
    for pool in ["default", "other"] {
        home.run_with(["cp", "-", &format!("ramlace://{pool}/file")], b"content").good();
        home.run(["ln", &format!("ramlace://{pool}/file"), &format!("ramlace://{pool}/name")]).good();
    }
    let both = ["ramlace://default/file", "ramlace://other/file"];
    let done = home.run(["du", "-bsc", both[0], both[1]]).good();
    assert!(done.text().ends_with("14\ttotal\n"), "{}", done.text());
}

#[test]
fn du_goes_on_and_tells_programs() {
    let home = home_with_tree();
    let done = home.run(["du", "-sb", "/nothing", "/data/sub"]).bad(&["/nothing does not exist"]);
    assert_eq!(done.text(), "3145728\t/data/sub\n");
    let json = home.run(["du", "-sc", "--json", "/data", "/empty"]).good().json();
    let whole = &json[0];
    assert_eq!(
        (&whole["path"], &whole["bytes"], &whole["files"], &whole["directories"]),
        (&"/data".into(), &((3 << 20) + 1503).into(), &4.into(), &2.into())
    );
    assert_eq!((&json[2]["total"], &json[2]["bytes"]), (&true.into(), &((3 << 20) + 1503).into()));
    assert_eq!(json[2]["directories"], 4);
    assert_eq!(home.run(["du", "-s", "-a"]).code, Some(2));
    assert!(home.run(["du", "--help"]).good().text().contains("--apparent-size"));
}

#[test]
fn chmod_changes_what_is_named() {
    let home = home_with_tree();
    let umask = |words: &str| {
        let mut command = std::process::Command::new("sh");
        let script = format!("umask 027; exec \"$0\" {words}");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_ramlace")]).env("XDG_RUNTIME_DIR", home.path(""));
        Done::from(command.output().unwrap()).good()
    };
    for (words, expected) in [
        ("chmod 640 /data/a.npy", "640"),
        ("chmod u+x,go-w,a=rX /data/a.npy", "555"),
        ("chmod -w /data/a.npy", "555"),
        ("chmod +w /data/a.npy", "755"),
        ("chmod -x,u+s /data/a.npy", "4645"),
        ("chmod g=u-r,o= /data/a.npy", "4620"),
        ("chmod =rw /data/a.npy", "640"),
    ] {
        umask(words);
        assert_eq!(mode(&home, "/data/a.npy"), expected, "{words}");
    }
    // What a link leads to, not the link.
    home.run(["chmod", "711", "/data/link"]).good();
    assert_eq!((mode(&home, "/data/sub"), mode(&home, "/data/link")), ("711".into(), "777".into()));
    home.run(["chmod", "2755", "/empty"]).good();
    home.run(["chmod", "700", "/empty"]).good();
    assert_eq!(mode(&home, "/empty"), "2700");
    home.run(["chmod", "00700", "/empty"]).good();
    assert_eq!(mode(&home, "/empty"), "700");
    home.run(["chmod", "600", "/nothing", "/data/a.npy"]).bad(&["/nothing does not exist"]);
    assert_eq!(mode(&home, "/data/a.npy"), "600");
    assert_eq!(home.run(["chmod", "--json", "644", "/data/a.npy"]).good().json()["changed"], 1);
    for wrong in ["8", "u+q", "", "u+x,"] {
        let done = home.run(["chmod", wrong, "/data/a.npy"]);
        assert_eq!(done.code, Some(2), "{wrong}");
        assert!(done.stderr.contains("is no mode"), "{done:?}");
    }
}

#[test]
fn chmod_changes_trees() {
    let home = home_with_tree();
    let done = home.run(["chmod", "-R", "--json", "u=rwX,go=", "/data"]).good();
    assert_eq!(done.json()["changed"], 6);
    let modes = |paths: &[&str]| paths.iter().map(|path| mode(&home, path)).collect::<Vec<_>>();
    let files = ["/data/a.npy", "/data/sub/B.NPY", "/data/sub/deep/c.txt"];
    let directories = ["/data", "/data/sub", "/data/sub/deep"];
    assert_eq!(modes(&files), ["600"; 3]);
    assert_eq!(modes(&directories), ["700"; 3]);
    assert_eq!(mode(&home, "/empty"), "755");
    // Also when directories can no longer be entered afterwards, and back again.
    // For an ordinary user what is in them is out of sight then.
    assert_eq!(home.run(["chmod", "-R", "--json", "0", "/data"]).good().json()["changed"], 6);
    assert_eq!(mode(&home, "/data"), "0");
    home.run(["chmod", "-R", "a+rX,u+w", "/data"]).good();
    assert_eq!((modes(&files), modes(&directories)), (vec!["644".to_owned(); 3], vec!["755".to_owned(); 3]));
}

#[test]
fn chown_changes_owners() {
    let home = home_with_tree();
    let is_root = rustix::process::geteuid().is_root();
    let owner = |path: &str| (number(&home, path, "uid"), number(&home, path, "gid"));
    let before = owner("/data/a.npy");
    if !is_root {
        // Nothing can be given away, and the message names the new owner.
        home.run(["chown", "1", "/data/a.npy"]).bad(&["changing the owner of /data/a.npy", "may not give"]);
        assert_eq!(owner("/data/a.npy"), before);
        return;
    }
    home.run(["chown", "7:8", "/data/a.npy"]).good();
    assert_eq!(owner("/data/a.npy"), (7, 8));
    home.run(["chown", ":9", "/data/a.npy"]).good();
    home.run(["chown", "root", "/data/a.npy"]).good();
    assert_eq!(owner("/data/a.npy"), (0, 9));
    home.run(["chown", "root:", "/data/a.npy"]).good();
    assert_eq!(owner("/data/a.npy"), (0, 0));
    // What a link leads to; with -h and in trees, the link.
    home.run(["chown", "1", "/data/link"]).good();
    assert_eq!((owner("/data/sub").0, owner("/data/link").0), (1, 0));
    home.run(["chown", "--no-dereference", "2", "/data/link"]).good();
    assert_eq!((owner("/data/sub").0, owner("/data/link").0), (1, 2));
    assert_eq!(home.run(["chown", "-R", "--json", "5:6", "/data"]).good().json()["changed"], 7);
    for path in found(&home, "find /data") {
        assert_eq!(owner(&path), (5, 6), "{path}");
    }
    assert_eq!(owner("/empty"), before);
    home.run(["chown", "3", "/nothing", "/empty"]).bad(&["/nothing does not exist"]);
    assert_eq!(owner("/empty").0, 3);
}

#[test]
fn chown_refuses_who_is_not_known() {
    let home = Home::with_pool(1, "64MiB");
    for (who, words) in [
        ("ramlace-knows-nobody", "knows no user 'ramlace-knows-nobody'"),
        ("0:ramlace-knows-nobody", "knows no group"),
        ("4294967295", "no user's number"),
        (":", "names nobody"),
    ] {
        let done = home.run(["chown", who, "/"]);
        assert_eq!(done.code, Some(2), "{done:?}");
        assert!(done.stderr.contains(words), "{done:?}");
    }
}

#[test]
fn touch_makes_files_and_sets_times() {
    let home = home_with_tree();
    let times = |path: &str| {
        let json = home.run(["stat", "--json", path]).good().json();
        (json["accessed"].as_f64().unwrap(), json["modified_ns"].as_i64().unwrap())
    };
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    home.run(["touch", "/new", "/empty", "ramlace:/data/a.npy"]).good();
    for path in ["/new", "/empty", "/data/a.npy"] {
        assert!(times(path).1 >= began.as_nanos() as i64, "{path}");
    }
    assert_eq!((number(&home, "/new", "size"), number(&home, "/data/a.npy", "size")), (0, 1500));
    home.run(["touch", "-d", "2026-01-31T17:05:09.123456789Z", "/new"]).good();
    assert_eq!(times("/new"), (1_769_879_109.123_456_8, 1_769_879_109_123_456_789));
    home.run(["touch", "-a", "-d", "@100", "/new"]).good();
    home.run(["touch", "-m", "--date=@200", "/new"]).good();
    assert_eq!(times("/new"), (100.0, 200_000_000_000));
    home.run(["touch", "-r", "/new", "/made-with-its-times"]).good();
    assert_eq!(times("/made-with-its-times"), (100.0, 200_000_000_000));
    let local = home
        .command()
        .args(["touch", "-t", "202607011200.30", "/new"])
        .env("TZ", "EST5EDT,M3.2.0,M11.1.0")
        .output();
    Done::from(local.unwrap()).good();
    assert_eq!(times("/new").1, 1_782_921_630_000_000_000);
    // A link is followed, unless it is meant itself.
    home.run(["touch", "-d", "@300", "/data/link"]).good();
    home.run(["touch", "--no-dereference", "-d", "@400", "/data/link"]).good();
    assert_eq!((times("/data/sub").1, times("/data/link").1), (300_000_000_000, 400_000_000_000));
}

#[test]
fn touch_makes_nothing_when_asked_and_goes_on() {
    let home = Home::with_pool(1, "64MiB");
    assert_eq!(home.run(["touch", "-c", "--json", "/x"]).good().json()["touched"], 0);
    home.run(["touch", "--no-dereference", "/x"]).bad(&["/x does not exist"]);
    home.run(["touch", "/no/way", "/x"]).bad(&["/no/way"]);
    assert_eq!(home.run(["ls"]).good().text(), "x\n");
    assert_eq!(mode(&home, "/x"), format!("{:o}", 0o666 & !current_umask()));
    home.run(["touch", "-r", "/nothing", "/y"]).bad(&["/nothing does not exist"]);
    home.run(["touch", "-d", "sometime", "/y"]).bad(&["'sometime' is no date"]);
    home.run(["touch", "-t", "1332", "/y"]).bad(&["'1332' is no time", "MMDDhhmm"]);
    assert_eq!(home.run(["touch", "-d", "now", "-r", "/x", "/y"]).code, Some(2));
    assert_eq!(home.run(["ls"]).good().text(), "x\n");
    // A link that leads nowhere is the place of a new file.
    home.run(["ln", "-s", "z", "/dangling"]).good();
    home.run(["touch", "/dangling"]).good();
    assert_eq!(home.run(["ls"]).good().text(), "dangling\nx\nz\n");
}

fn current_umask() -> u32 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn trees_deeper_than_a_path_is_long_are_walked() {
    let home = Home::with_pool(2, "64MiB");
    // Names of 250 bytes: 40 of them are more than the 4,096 bytes of a path; links shorten the way.
    let name = "n".repeat(250);
    home.run(["mkdir", "/top"]).good();
    let mut at = "/top".to_owned();
    for round in 0..4 {
        let below = format!("{at}/{}", [name.as_str(); 10].join("/"));
        home.run(["mkdir", "-p", &below]).good();
        at = format!("/link{round}");
        home.run(["ln", "-s", &below, &at]).good();
    }
    home.run(["touch", &format!("{at}/file")]).good();
    assert_eq!(found(&home, "find /top").len(), 42);
    assert_eq!(found(&home, "find /top -name file")[0].len(), "/top/".len() + 40 * 251 + "file".len());
    let json = home.run(["du", "-s", "--json", "/top"]).good().json();
    assert_eq!((&json[0]["files"], &json[0]["directories"]), (&1.into(), &40.into()));
    assert_eq!(home.run(["chmod", "-R", "--json", "go=", "/top"]).good().json()["changed"], 42);
    assert_eq!(mode(&home, &format!("{at}/file")), format!("{:o}", 0o600 & !current_umask()));
}

#[test]
fn directories_of_many_pages_are_walked_once() {
    let home = Home::with_pool(2, "128MiB");
    home.run(["mkdir", "/many"]).good();
    let paths: Vec<OsString> = (0..3000).map(|number| format!("/many/{number}").into()).collect();
    home.run([OsString::from("touch")].into_iter().chain(paths)).good();
    let mut names = found(&home, "find /many -type f");
    names.dedup();
    assert_eq!(names.len(), 3000);
    assert_eq!(home.run(["du", "-s", "--json", "/many"]).good().json()[0]["files"], 3000);
}

#[test]
fn a_server_that_is_gone_is_named_and_the_rest_is_found() {
    let home = Home::with_pool(2, "64MiB");
    let directories: Vec<String> = (0..16).map(|number| format!("/d{number}")).collect();
    home.run(["mkdir"].into_iter().chain(directories.iter().map(String::as_str))).good();
    // The root lives on server 0; half of the directories live on server 1.
    let server = home.status()["servers"][1].clone();
    kill(server["supervisor_pid"].as_u64().unwrap());
    kill(server["pid"].as_u64().unwrap());
    let done = home.run(["find", "/", "-name", "*"]).bad(&["server 1", "/d"]);
    assert_eq!(lines(&done).len(), 17, "{done:?}");
}
