//! What `doctor` checks. Each check tries the thing itself where that is possible.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, limits};
use ramlace_client::{POOL_DEFAULT, PoolDirectory};
use ramlace_launch::known_pools;
use ramlace_store::{Backing, StoreOptions, StoreRoot, find_stale, machine_memory};
use rustix::process::{Resource, getrlimit};

use super::doctor_processes::processes;
use super::pools::told;

/// How a thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There, and used.
    Ok,
    /// Not there; ramlace works without it.
    Absent,
    /// ramlace, or its mount, cannot work without it.
    Broken,
}

impl State {
    /// For people and programs.
    pub fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Absent => "absent",
            State::Broken => "broken",
        }
    }
}

/// One thing that was checked.
#[derive(Debug)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// How it was found.
    pub state: State,
    /// What was found and what it means.
    pub found: String,
}

/// Everything that is checked, in the order it is shown.
pub fn checks() -> Vec<Finding> {
    let mut findings = vec![kernel(), user_namespaces()];
    findings.extend(private_store());
    findings.extend([memory(), shared_memory(), transparent_huge_pages()]);
    findings.extend(fuse(&Machine::here()));
    findings.extend([descriptors(), threads()]);
    findings.extend([system_calls(), landlock()]);
    findings.extend(processes());
    findings.extend([directory(), pools(), stale_stores()]);
    findings
}

fn finding(name: &'static str, good: bool, found: String) -> Finding {
    Finding { name, state: if good { State::Ok } else { State::Absent }, found }
}

fn broken(name: &'static str, error: &Error) -> Finding {
    Finding { name, state: State::Broken, found: error.to_string() }
}

/// The first line of a small file of the kernel's.
fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().next().map(|line| line.trim().to_owned())
}

fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The first two numbers of a release such as `6.1.0-31-amd64`; 0 for what is none.
fn kernel_version(release: &str) -> (u32, u32) {
    let number =
        |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    let mut parts = release.split('.').map(number);
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn kernel() -> Finding {
    let release = kernel_release();
    let version = kernel_version(&release);
    if version < (5, 3) {
        let text = format!("Linux {release} is too old: 5.3 is the oldest that ramlace knows");
        return Finding { name: "kernel", state: State::Broken, found: text };
    }
    Finding { name: "kernel", state: State::Ok, found: format!("Linux {release}") }
}

/// Servers that serve keep to the system calls of their work.
fn system_calls() -> Finding {
    let there = setting("/proc/sys/kernel/seccomp/actions_avail").is_some();
    let found = match there {
        true => "a server, and a mount's daemon, keeps to the system calls of its work (seccomp), unless RAMLACE_SANDBOX=off".into(),
        false => "no seccomp: a server or a mount that is taken over can make any system call".into(),
    };
    finding("system calls of servers", there, found)
}

/// And to the files of their pool.
fn landlock() -> Finding {
    let version = ramlace_server::landlock_version();
    let found = match version {
        1.. => format!(
            "a server, and a mount's daemon, keeps to its pool's files (Landlock {version}), unless RAMLACE_SANDBOX=off"
        ),
        _ => "no Landlock: a server or a mount that is taken over has its user's files".into(),
    };
    finding("files of servers", version > 0, found)
}

fn user_namespaces() -> Finding {
    let forbidden = [
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ];
    let refusal = forbidden.iter().find(|(path, value)| setting(path).as_deref() == Some(value));
    match refusal {
        Some((path, value)) => {
            let text =
                format!("{path} is {value}; ordinary users get stores in /dev/shm instead of private ones");
            finding("user namespaces", false, text)
        }
        None => {
            finding("user namespaces", true, "not forbidden; ordinary users may get private stores".into())
        }
    }
}

/// A small store is really made: the only answer that counts.
fn private_store() -> Vec<Finding> {
    let options = StoreOptions {
        size_bytes: limits::STORE_BYTES_MIN,
        backing: Backing::PrivateTmpfs,
        name: "doctor".to_owned(),
    };
    match StoreRoot::create(&options) {
        Ok(root) => {
            let huge = root.has_huge_pages();
            let pages =
                if huge { "chunks get 2 MiB pages" } else { "chunks get 4 KiB pages, which is slower" };
            vec![
                finding("private store", true, format!("a trial worked: {}", root.notes().join(" "))),
                finding("huge pages", huge, pages.to_owned()),
            ]
        }
        Err(error) => {
            let text = format!("a trial failed, stores will lie in /dev/shm: {error}");
            vec![finding("private store", false, text)]
        }
    }
}

fn memory() -> Finding {
    match machine_memory() {
        Ok(memory) => {
            let enough = memory.available_bytes >= limits::STORE_BYTES_MIN + limits::STORE_MARGIN_BYTES;
            let text =
                format!("{} available, by {}", format_bytes(memory.available_bytes), memory.limited_by);
            Finding { name: "memory", state: if enough { State::Ok } else { State::Broken }, found: text }
        }
        Err(error) => broken("memory", &error),
    }
}

fn shared_memory() -> Finding {
    match rustix::fs::statvfs("/dev/shm") {
        Ok(stat) if stat.f_blocks > 0 => {
            let text = format!(
                "{} free, for stores where private ones are refused",
                format_bytes(stat.f_bavail * stat.f_frsize)
            );
            finding("/dev/shm", true, text)
        }
        Ok(_) => finding("/dev/shm", true, "without a limit of its own".into()),
        Err(errno) => finding("/dev/shm", false, format!("{errno}; only private stores work here")),
    }
}

/// The chosen word of a setting such as `always [madvise] never`.
fn chosen(path: &str) -> String {
    let line = setting(path).unwrap_or_default();
    let word = line.split_whitespace().find(|word| word.starts_with('['));
    word.map_or("unknown".to_owned(), |word| word.trim_matches(['[', ']']).to_owned())
}

fn transparent_huge_pages() -> Finding {
    let directory = "/sys/kernel/mm/transparent_hugepage";
    let (anonymous, shared) =
        (chosen(&format!("{directory}/enabled")), chosen(&format!("{directory}/shmem_enabled")));
    let text = format!(
        "enabled={anonymous}, shmem_enabled={shared}; private stores do not depend on the second, stores in /dev/shm do"
    );
    finding("transparent huge pages", anonymous != "never" && anonymous != "unknown", text)
}

/// Where FUSE is searched for: the machine, or a made-up one for tests.
struct Machine {
    /// The directory that stands for `/`.
    root: PathBuf,
    /// The kernel's first two numbers.
    kernel: (u32, u32),
    /// Directories of programs.
    path: OsString,
    is_root: bool,
}

impl Machine {
    fn here() -> Machine {
        Machine {
            root: PathBuf::from("/"),
            kernel: kernel_version(&kernel_release()),
            path: std::env::var_os("PATH").unwrap_or_default(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// What the mount needs, and what it can use.
fn fuse(machine: &Machine) -> Vec<Finding> {
    let helper = fusermount(machine);
    vec![
        fuse_device(machine, helper.as_deref()),
        fuse_passthrough(machine),
        fuse_direct_mappings(machine),
        read_ahead(machine),
        allow_other(machine),
    ]
}

/// The helper, if it is there.
fn fusermount(machine: &Machine) -> Option<PathBuf> {
    std::env::split_paths(&machine.path)
        .map(|directory| directory.join("fusermount3"))
        .find(|file| file.is_file())
}

/// Root mounts by itself. For others fusermount3 does, and opens the device with their rights.
fn fuse_device(machine: &Machine, helper: Option<&Path>) -> Finding {
    let device = fs::OpenOptions::new().read(true).write(true).open(machine.at("/dev/fuse"));
    let broken = |found: String| Finding { name: "FUSE", state: State::Broken, found };
    match (device, helper) {
        (Err(error), _) => broken(closed_device(&error)),
        (Ok(_), None) if !machine.is_root => {
            broken("fusermount3 is not in PATH; only root can mount the pool (Debian's package fuse3)".into())
        }
        (Ok(_), Some(helper)) if !machine.is_root && !is_set_user_id_root(helper) => broken(format!(
            "{} is not set-user-id root; only root can mount the pool (chmod u+s, or install fuse3 again)",
            helper.display()
        )),
        (Ok(_), None) => finding("FUSE", true, "/dev/fuse opens; as root, fusermount3 is not needed".into()),
        (Ok(_), Some(helper)) => finding("FUSE", true, format!("/dev/fuse opens; {}", helper.display())),
    }
}

/// Why the device does not open, and what to do.
fn closed_device(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "/dev/fuse may not be opened by you, so the pool cannot be mounted; \
             let root open it to everybody (chmod 666 /dev/fuse), as Debian does"
                .into()
        }
        _ => format!(
            "/dev/fuse: {error}; the pool cannot be mounted here; let root load the module (modprobe fuse) or, \
             in a container, pass the device in"
        ),
    }
}

fn is_set_user_id_root(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o4000 != 0)
}

/// Whether the kernel may have files itself (`mount --passthrough`), by its number.
fn fuse_passthrough(machine: &Machine) -> Finding {
    let text = if machine.kernel < (6, 9) {
        "needs Linux 6.9; the mount works without it, and mapped files are read through its daemon"
    } else if machine.is_root {
        "`mount --passthrough` maps files of one lane from the memory of this machine's servers"
    } else {
        "this kernel has it, for root alone: `mount --passthrough` is refused to you"
    };
    finding("FUSE passthrough", machine.kernel >= (6, 9), text.into())
}

/// Whether files that bypass the kernel's pages in calls can be mapped, by the kernel's number.
fn fuse_direct_mappings(machine: &Machine) -> Finding {
    let has = machine.kernel >= (6, 6);
    let text = if has {
        "files that are open for appending can be mapped"
    } else {
        "needs Linux 6.6: files that are open for appending cannot be mapped"
    };
    finding("FUSE direct mmap", has, text.into())
}

/// The kernel begins at 128 KiB; only root may change it, for each mount.
fn read_ahead(machine: &Machine) -> Finding {
    let directory = "/sys/class/bdi";
    if !machine.at(directory).is_dir() {
        let text = format!("{directory} is missing: mounts read ahead what the kernel chooses");
        return finding("FUSE read-ahead", false, text);
    }
    if machine.is_root {
        return finding(
            "FUSE read-ahead",
            true,
            format!("root sets it for each mount ({directory}/*/read_ahead_kb)"),
        );
    }
    let text =
        "only root can raise it: mounts of yours read ahead what the kernel chooses (128 KiB, usually)";
    finding("FUSE read-ahead", false, text.into())
}

/// Whether users may let others into their mounts.
fn allow_other(machine: &Machine) -> Finding {
    let file = "/etc/fuse.conf";
    let text = fs::read_to_string(machine.at(file)).unwrap_or_default();
    // As fusermount3 reads it: the word alone on its line.
    if text.lines().any(|line| line.trim() == "user_allow_other") {
        return finding(
            "FUSE for others",
            true,
            format!("user_allow_other is set in {file}: `mount --allow-other` is for everybody"),
        );
    }
    if machine.is_root {
        return finding(
            "FUSE for others",
            true,
            "root needs no user_allow_other for `mount --allow-other`".into(),
        );
    }
    let text = format!(
        "user_allow_other is not set in {file}: what you mount is yours alone; `mount --allow-other` needs that line"
    );
    finding("FUSE for others", false, text)
}

/// A server holds connections and lane files; a client up to 8 connections for each server.
fn descriptors() -> Finding {
    let wanted = (limits::CONNECTIONS_MAX + limits::LANE_DESCRIPTORS_MAX) as u64;
    let limit = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let text = format!(
        "{} (up to {}); a server with {} connections needs {wanted}",
        shown(limit.current),
        shown(limit.maximum),
        limits::CONNECTIONS_MAX
    );
    finding("open files", limit.current.is_none_or(|limit| limit >= wanted), text)
}

fn threads() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    finding("processors", true, format!("{cores}; each server uses one, each client thread another"))
}

fn directory() -> Finding {
    match PoolDirectory::locate(POOL_DEFAULT) {
        Ok(directory) => {
            let base = directory.path().parent().unwrap_or(Path::new("/"));
            finding("pool directory", true, format!("{} (yours alone)", base.display()))
        }
        Err(error) => broken("pool directory", &error),
    }
}

fn pools() -> Finding {
    let pools = match known_pools() {
        Ok(pools) => pools,
        Err(error) => return broken("pools", &error),
    };
    let told: Vec<String> =
        pools.iter().map(|pool| format!("{} ({})", pool.name, told(&pool.state, &pool.name))).collect();
    let text = if told.is_empty() { "none; 'ramlace up' starts one".to_owned() } else { told.join(", ") };
    finding("pools", pools.iter().all(|pool| pool.state.is_good()), text)
}

fn stale_stores() -> Finding {
    match find_stale() {
        Ok(stale) if stale.is_empty() => finding("stale stores", true, "none in /dev/shm".into()),
        Ok(stale) => {
            let bytes = stale.iter().map(|store| store.allocated_bytes).sum();
            let paths: Vec<&str> = stale.iter().map(|store| store.path.as_str()).collect();
            let text = format!(
                "{} of dead servers hold {}; 'ramlace up' or 'down' of their pool gives it back, or remove {}",
                stale.len(),
                format_bytes(bytes),
                paths.join(", ")
            );
            finding("stale stores", false, text)
        }
        Err(error) => finding("stale stores", false, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_check_says_something() {
        let findings = checks();
        assert!(findings.len() >= 15);
        for finding in findings {
            assert!(!finding.found.is_empty(), "{}", finding.name);
        }
    }

    #[test]
    fn releases_are_numbers() {
        assert_eq!(kernel_version("6.1.0-31-amd64"), (6, 1));
        assert_eq!(kernel_version("6.14-rc1"), (6, 14));
        assert_eq!(kernel_version("10.2"), (10, 2));
        assert_eq!(kernel_version("odd"), (0, 0));
    }

    /// A made-up machine in a directory of its own, with these files; removed at the end.
    struct MadeUp(Machine);

    impl MadeUp {
        fn new(name: &str, kernel: (u32, u32), is_root: bool, files: &[(&str, &str)]) -> MadeUp {
            let root = std::env::temp_dir().join(format!("ramlace-doctor-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("bin")).unwrap();
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            let path = root.join("bin").into_os_string();
            MadeUp(Machine { root, kernel, path, is_root })
        }

        fn check(&self, name: &str) -> (State, String) {
            let found = fuse(&self.0).into_iter().find(|finding| finding.name == name).unwrap();
            (found.state, found.found)
        }
    }

    impl Drop for MadeUp {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0.root).unwrap();
        }
    }

    const DEVICE: (&str, &str) = ("dev/fuse", "");
    const HELPER: (&str, &str) = ("bin/fusermount3", "");

    #[test]
    fn root_needs_the_device_alone() {
        let (state, found) = MadeUp::new("root", (6, 1), true, &[DEVICE]).check("FUSE");
        assert!(state == State::Ok && found.contains("not needed"), "{found}");
        let (state, found) = MadeUp::new("none", (6, 1), true, &[HELPER]).check("FUSE");
        assert!(state == State::Broken && found.contains("modprobe fuse"), "{found}");
    }

    #[test]
    fn users_need_the_helper_with_its_right() {
        let (state, found) = MadeUp::new("helpless", (6, 1), false, &[DEVICE]).check("FUSE");
        assert!(state == State::Broken && found.contains("package fuse3"), "{found}");
        let machine = MadeUp::new("helped", (6, 1), false, &[DEVICE, HELPER]);
        let (state, found) = machine.check("FUSE");
        assert!(state == State::Broken && found.contains("set-user-id"), "{found}");
        let helper = machine.0.root.join("bin/fusermount3");
        fs::set_permissions(&helper, fs::Permissions::from_mode(0o4755)).unwrap();
        let (state, found) = machine.check("FUSE");
        // Only root can make a file of root's.
        let roots = fs::metadata(&helper).unwrap().uid() == 0;
        assert_eq!(state == State::Ok, roots, "{found}");
        assert!(found.contains("fusermount3"), "{found}");
    }

    #[test]
    fn a_device_that_may_not_be_opened_is_told_from_one_that_is_missing() {
        let denied = closed_device(&io::ErrorKind::PermissionDenied.into());
        let missing = closed_device(&io::ErrorKind::NotFound.into());
        assert!(denied.contains("chmod 666") && !denied.contains("modprobe"), "{denied}");
        assert!(missing.contains("modprobe") && !missing.contains("chmod"), "{missing}");
    }

    #[test]
    fn each_feature_is_told_for_itself() {
        let check = |name: &str, kernel, is_root| MadeUp::new("features", kernel, is_root, &[]).check(name);
        let (state, found) = check("FUSE passthrough", (6, 1), true);
        assert!(state == State::Absent && found.contains("needs Linux 6.9"), "{found}");
        assert_eq!(check("FUSE passthrough", (6, 9), true).0, State::Ok);
        let (state, found) = check("FUSE passthrough", (7, 0), false);
        assert!(state == State::Ok && found.contains("for root alone"), "{found}");
        let (state, found) = check("FUSE direct mmap", (6, 1), true);
        assert!(state == State::Absent && found.contains("needs Linux 6.6"), "{found}");
        assert_eq!(check("FUSE direct mmap", (6, 6), true).0, State::Ok);
    }

    #[test]
    fn read_ahead_is_roots_to_set() {
        let files = [("sys/class/bdi/0:47/read_ahead_kb", "128")];
        assert_eq!(MadeUp::new("bdi1", (6, 1), true, &files).check("FUSE read-ahead").0, State::Ok);
        assert_eq!(MadeUp::new("bdi2", (6, 1), false, &files).check("FUSE read-ahead").0, State::Absent);
        assert_eq!(MadeUp::new("bdi3", (6, 1), true, &[]).check("FUSE read-ahead").0, State::Absent);
    }

    #[test]
    fn others_are_let_in_by_a_line_of_its_own() {
        let check = |name: &str, is_root, text: &str| {
            MadeUp::new(name, (6, 1), is_root, &[("etc/fuse.conf", text)]).check("FUSE for others").0
        };
        assert_eq!(check("other1", false, "# comment\nuser_allow_other\n"), State::Ok);
        assert_eq!(check("other2", false, "#user_allow_other\n# user_allow_other - option\n"), State::Absent);
        assert_eq!(check("other3", true, ""), State::Ok);
    }
}
