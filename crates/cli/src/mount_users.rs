//! Which programs use a directory's mount: what /proc shows of open files, mappings and working directories.

use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A program that uses a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its process.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for User {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} (process {})", self.name, self.pid)
    }
}

/// How long the search may take. What a program that is stuck in a mount has mapped cannot be read until the
/// program goes on, and the reader gets stuck as well.
const PATIENCE: Duration = Duration::from_secs(3);

/// The programs that use what is mounted on `directory`, as far as they can be seen: not those of other users
/// without root, and none when the search does not end.
pub fn users_of(directory: &Path) -> Vec<User> {
    let (tell, told) = channel();
    let directory = directory.to_owned();
    // The thread is left behind when it is stuck; this process ends soon.
    let look = move || tell.send(look_around(&directory));
    match std::thread::Builder::new().spawn(look) {
        Ok(_) => told.recv_timeout(PATIENCE).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn look_around(directory: &Path) -> Vec<User> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut users: Vec<User> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id() && uses(*pid, directory))
        .map(|pid| User { pid, name: name_of(pid) })
        .collect();
    users.sort_by_key(|user| user.pid);
    users
}

/// A sentence's part that names them: "cat (process 12), R (process 14) and 3 more".
pub fn list(users: &[User]) -> String {
    const NAMED_MAX: usize = 5;
    let named: Vec<String> = users.iter().take(NAMED_MAX).map(User::to_string).collect();
    match users.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn uses(pid: u32, directory: &Path) -> bool {
    let within = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(directory));
    let root = format!("/proc/{pid}");
    let root = Path::new(&root);
    ["cwd", "root", "exe"].iter().any(|link| within(&root.join(link)))
        || fs::read_dir(root.join("fd"))
            .is_ok_and(|entries| entries.flatten().any(|entry| within(&entry.path())))
        || maps_within(root, directory)
}

/// A mapping keeps a mount busy after its descriptor was closed.
fn maps_within(root: &Path, directory: &Path) -> bool {
    let Ok(maps) = fs::read(root.join("maps")) else { return false };
    // Address, rights, offset, device, inode, and the path behind white space.
    maps.split(|byte| *byte == b'\n').any(|line| {
        let path = line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]);
        path.is_some_and(|path| {
            use std::os::unix::ffi::OsStrExt;
            Path::new(std::ffi::OsStr::from_bytes(path)).starts_with(directory)
        })
    })
}

fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim().is_empty() { "a program".into() } else { name.trim().escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_makes_its_program_a_user() {
        let directory = std::env::temp_dir().join(format!("ramlace-users-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let file = fs::File::create(directory.join("x")).unwrap();
        let mut program = std::process::Command::new("sleep").arg("600").stdout(file).spawn().unwrap();
        let seen = users_of(&directory).iter().any(|user| user.pid == program.id());
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(seen);
        assert!(users_of(&directory).is_empty());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn long_lists_are_cut() {
        let user = |pid| User { pid, name: "cat".into() };
        assert_eq!(list(&[user(1), user(2)]), "cat (process 1), cat (process 2)");
        assert!(list(&(1..=7).map(user).collect::<Vec<_>>()).ends_with("cat (process 5) and 2 more"));
    }
}
