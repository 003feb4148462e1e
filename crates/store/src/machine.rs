//! How much memory the machine can still give, and what says so.

use std::fs;
use std::path::Path;

use ramlace_base::units::format_bytes;
use ramlace_base::{Error, ErrorKind, Result, limits};

/// What the machine can still give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// Bytes that may be taken without pushing others out.
    pub available_bytes: u64,
    /// What sets that limit, for people: `MemAvailable` or a control group's path.
    pub limited_by: String,
}

/// Asks the kernel: MemAvailable, and the limit of each control group (v1 or v2) above this process.
///
/// Errors: `Fatal` when `/proc/meminfo` cannot be read.
pub fn machine_memory() -> Result<MachineMemory> {
    let meminfo = fs::read_to_string("/proc/meminfo")
        .map_err(|error| Error::from_io(&error, "reading /proc/meminfo"))?;
    let available_bytes = meminfo_bytes(&meminfo, "MemAvailable:")
        .ok_or_else(|| Error::new(ErrorKind::Fatal, "/proc/meminfo has no MemAvailable line"))?;
    let mut memory = MachineMemory { available_bytes, limited_by: "MemAvailable".into() };
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for (root, path, version) in memory_groups(&groups) {
        tighten(&mut memory, root, &path, version);
    }
    Ok(memory)
}

/// Refuses a store that the machine cannot hold; names both numbers.
pub(crate) fn check_size(size_bytes: u64) -> Result<()> {
    if size_bytes < limits::STORE_BYTES_MIN {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "a store of {} is too small; give it at least {}",
                format_bytes(size_bytes),
                format_bytes(limits::STORE_BYTES_MIN)
            ),
        ));
    }
    let memory = machine_memory()?;
    if size_bytes.saturating_add(limits::STORE_MARGIN_BYTES) > memory.available_bytes {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "a store of {} does not fit this machine, which has {} available ({}) and keeps {} for \
                 everything else; ask for less",
                format_bytes(size_bytes),
                format_bytes(memory.available_bytes),
                memory.limited_by,
                format_bytes(limits::STORE_MARGIN_BYTES)
            ),
        ));
    }
    Ok(())
}

/// The value of a line such as `MemAvailable:  123 kB`, in bytes.
fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupVersion {
    One,
    Two,
}

/// The memory groups in the text of `/proc/self/cgroup`: where they are mounted by custom, path, version.
fn memory_groups(text: &str) -> Vec<(&'static str, String, GroupVersion)> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            if controllers.split(',').any(|name| name == "memory") {
                Some(("/sys/fs/cgroup/memory", path.to_owned(), GroupVersion::One))
            } else if number == "0" && controllers.is_empty() {
                Some(("/sys/fs/cgroup", path.to_owned(), GroupVersion::Two))
            } else {
                None
            }
        })
        .collect()
}

/// Walks from the group to the root; the tightest limit wins.
fn tighten(memory: &mut MachineMemory, root: &str, path: &str, version: GroupVersion) {
    // Inside a container the path may be the host's while the mount shows the container's own group
    // as its root: levels that do not exist are passed over, and the root is always asked.
    let relative = Path::new(path.trim_start_matches('/'));
    for level in relative.ancestors() {
        let directory = Path::new(root).join(level);
        if let Some(room) = group_room_bytes(&directory, version)
            && room < memory.available_bytes
        {
            memory.available_bytes = room;
            memory.limited_by = format!("the limit of control group {}", directory.display());
        }
    }
}

/// What one group may still take: its limit less what it uses and cannot drop.
fn group_room_bytes(directory: &Path, version: GroupVersion) -> Option<u64> {
    let (limit, usage, droppable) = match version {
        GroupVersion::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
        GroupVersion::Two => ("memory.max", "memory.current", "inactive_file "),
    };
    let number = |name: &str| fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(limit)?; // "max" is no number: no limit
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let droppable = stat.lines().find_map(|line| line.strip_prefix(droppable)?.trim().parse().ok());
    Some(limit.saturating_sub(number(usage)?.saturating_sub(droppable.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found() {
        let text = "9:name=systemd:/\n4:memory,cpu:/a/b:c\n3:cpuset:/x\n0::/user.slice/session\n";
        assert_eq!(
            memory_groups(text),
            [
                ("/sys/fs/cgroup/memory", "/a/b:c".to_owned(), GroupVersion::One),
                ("/sys/fs/cgroup", "/user.slice/session".to_owned(), GroupVersion::Two),
            ]
        );
    }

    #[test]
    fn a_group_below_the_machine_decides() {
        let root = std::env::temp_dir().join(format!("ramlace-group-test-{}", std::process::id()));
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("a/memory.max"), "1000000\n").unwrap();
        fs::write(root.join("a/memory.current"), "400000\n").unwrap();
        fs::write(root.join("a/memory.stat"), "anon 5\ninactive_file 100000\n").unwrap();
        let mut memory = MachineMemory { available_bytes: 1 << 30, limited_by: "MemAvailable".into() };
        tighten(&mut memory, root.to_str().unwrap(), "/a/missing", GroupVersion::Two);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(memory.available_bytes, 700_000);
        assert!(memory.limited_by.ends_with("/a"), "{}", memory.limited_by);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        assert_eq!(check_size(4096).unwrap_err().kind(), ErrorKind::Invalid);
        let error = check_size(1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().contains("1024 PiB"), "{error}");
        assert!(error.message().contains("available"), "{error}");
    }
}
