//! What `doctor` looks at. Each check tries the thing itself where that is possible.

use std::fs;
use std::path::Path;

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, limits};
use ramlace_client::{PoolDirectory, pool_name};
use ramlace_store::{Backing, StoreOptions, StoreRoot, find_stale, machine_memory};
use rustix::process::{Resource, getrlimit};

use crate::pool_processes;
use crate::stop::count_servers;

/// How a thing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There, and used.
    Ok,
    /// Not there; ramlace works without it.
    Absent,
    /// ramlace cannot work without it.
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

/// One thing that was looked at.
#[derive(Debug)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// How it was found.
    pub state: State,
    /// What was found and what it means.
    pub found: String,
}

/// Everything that is looked at, in the order it is shown.
pub fn checks() -> Vec<Finding> {
    let mut findings = vec![kernel(), user_namespaces()];
    findings.extend(private_store());
    findings.extend([memory(), shared_memory(), transparent_huge_pages(), fuse(), descriptors(), threads()]);
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

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let number =
        |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    let mut parts = release.split('.').map(number);
    let version: (u32, u32) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < (5, 3) {
        let text = format!("Linux {release} is too old: 5.3 is the oldest that ramlace knows");
        return Finding { name: "kernel", state: State::Broken, found: text };
    }
    let mount = match version {
        (7.., _) | (6, 14..) => "private mounts, FUSE passthrough, FUSE over io_uring",
        (6, 9..) => "private mounts, FUSE passthrough",
        (6, _) | (5, 2..) => "private mounts; FUSE passthrough needs 6.9",
        _ => "basic service",
    };
    Finding { name: "kernel", state: State::Ok, found: format!("Linux {release}: {mount}") }
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

fn fuse() -> Finding {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let helper = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|dir| dir.join("fusermount3")).find(|file| file.is_file())
    });
    match (device, helper) {
        (Err(error), _) => {
            finding("FUSE", false, format!("/dev/fuse: {error}; the pool cannot be mounted here"))
        }
        (Ok(_), None) if !rustix::process::geteuid().is_root() => {
            let text = "fusermount3 is not in PATH; only root can mount the pool (package fuse3)";
            finding("FUSE", false, text.into())
        }
        (Ok(_), None) => finding("FUSE", true, "/dev/fuse opens; as root, fusermount3 is not needed".into()),
        (Ok(_), Some(helper)) => finding("FUSE", true, format!("/dev/fuse opens; {}", helper.display())),
    }
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
    match PoolDirectory::locate(&pool_name(None)) {
        Ok(directory) => {
            let base = directory.path().parent().unwrap_or(Path::new("/"));
            finding("pool directory", true, format!("{} (yours alone)", base.display()))
        }
        Err(error) => broken("pool directory", &error),
    }
}

fn pools() -> Finding {
    let directories = match PoolDirectory::list() {
        Ok(directories) => directories,
        Err(error) => return broken("pools", &error),
    };
    let state = |directory: &PoolDirectory| match pool_processes::find(&directory.secret_path()) {
        Ok(running) if running.is_empty() => {
            format!("{} (dead; 'ramlace up' or 'down' clears it)", directory.name())
        }
        Ok(running) => format!("{} ({} running)", directory.name(), count_servers(&running)),
        Err(error) => format!("{} ({error})", directory.name()),
    };
    let states: Vec<String> = directories.iter().map(state).collect();
    let text = if states.is_empty() { "none; 'ramlace up' starts one".to_owned() } else { states.join(", ") };
    finding("pools", true, text)
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
    use super::*;

    #[test]
    fn every_check_says_something() {
        let findings = checks();
        assert!(findings.len() >= 12);
        for finding in findings {
            assert!(!finding.found.is_empty(), "{}", finding.name);
        }
    }
}
