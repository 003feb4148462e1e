//! Where a pool's files live on this machine (`docs/records/pool-directory.md`): secret, addresses, sockets, logs.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ramlace_base::{Error, ErrorKind, Result, ServerId};
use ramlace_transport::{HostKey, Secret, create_private_file, replace_private_file};
use serde::{Deserialize, Serialize};

/// The pool that is used when none is named.
pub const POOL_DEFAULT: &str = "default";
/// Environment variable that names the pool.
pub const POOL_VARIABLE: &str = "RAMLACE_POOL";
/// Environment variable that names the secret's file, for pools that live elsewhere.
pub const SECRET_FILE_VARIABLE: &str = "RAMLACE_SECRET_FILE";
/// Environment variable that names the host key's file, for pools that live elsewhere.
pub const HOST_KEY_FILE_VARIABLE: &str = "RAMLACE_HOST_KEY_FILE";

/// Longest name of a pool: it is part of a socket's path, which has 107 bytes.
const POOL_NAME_BYTES_MAX: usize = 32;
/// Largest `pool.json` that is read: a few hundred bytes for each of 4,096 servers.
const POOL_FILE_BYTES_MAX: u64 = 4 << 20;
/// Largest file with a key that is read: a secret has 64 hexadecimal digits, a host key a name, a number and 144.
const KEY_FILE_BYTES_MAX: u64 = 256;

/// One server as `pool.json` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFileServer {
    /// Its number in the pool.
    pub server: u16,
    /// `address:port` for TCP.
    pub tcp: String,
    /// Path of its Unix socket; `None`: it runs on another machine than the one where this file lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// The process id of its supervisor, on its machine; `down` waits for this process to end.
    pub supervisor_pid: u32,
    /// The host that it runs on, as the hosts file names it; `None` in a pool of one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl PoolFileServer {
    /// The server's number as an id.
    #[must_use]
    pub fn id(&self) -> ServerId {
        ServerId(self.server)
    }
}

/// What `pool.json` says of a pool that `ramlace up --hosts` has started on several machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFileHosts {
    /// The name of the machine on which `up` ran: `down` stops all hosts from there.
    pub started_from: String,
    /// The host on which this file lies, as `hosts` names it; `None` on the machine where `up` ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub here: Option<String>,
    /// Every host, as it is passed to the transport command.
    pub hosts: Vec<String>,
    /// The words of the transport command, such as `ssh`.
    pub transport: Vec<String>,
    /// The words of the command that was run on every host, such as `ramlace`.
    pub remote_command: Vec<String>,
}

/// What `pool.json` says; written by `ramlace up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFile {
    /// The pool's name.
    pub name: String,
    /// The pool's id, 32 hexadecimal digits.
    pub pool: String,
    /// The server with the embedded coordinator.
    pub coordinator: u16,
    /// The servers that were started.
    pub servers: Vec<PoolFileServer>,
    /// Version of ramlace that wrote this file.
    pub version: String,
    /// The machines of a pool of several; `None`: all servers run on this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<PoolFileHosts>,
}

/// The directory of one pool: its owner's alone (0700), or it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDirectory {
    name: String,
    path: PathBuf,
}

/// The name of the pool to use: `named` (from `--pool`), else `RAMLACE_POOL`, else "default".
#[must_use]
pub fn pool_name(named: Option<&str>) -> String {
    named
        .map(str::to_owned)
        .or_else(|| std::env::var(POOL_VARIABLE).ok().filter(|name| !name.is_empty()))
        .unwrap_or_else(|| POOL_DEFAULT.to_owned())
}

impl PoolDirectory {
    /// Locates the pool's files, whether they exist or not. An existing directory must belong to the caller,
    /// and be closed to all others.
    pub fn locate(name: &str) -> Result<PoolDirectory> {
        PoolDirectory::within(&base_directory()?, name)
    }

    /// The same below another base directory, which is created (0700) when it is missing.
    pub fn within(base: &Path, name: &str) -> Result<PoolDirectory> {
        check_name(name)?;
        if exists(base)? {
            check_private(base)?;
        }
        let directory = PoolDirectory { name: name.to_owned(), path: base.join(name) };
        if directory.exists()? {
            check_private(&directory.path)?;
        }
        Ok(directory)
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory is there.
    pub fn exists(&self) -> Result<bool> {
        exists(&self.path)
    }

    /// Creates the directory (0700) with a new `secret` and `host-key` (0600), or checks and keeps existing
    /// ones.
    ///
    /// Of several processes that create it at once, one makes the secret, and all use that one.
    pub fn create(&self) -> Result<()> {
        self.create_without_keys()?;
        if !exists(&self.secret_path())? {
            self.create_secret(&new_secret()?)?;
        }
        self.keep_host_key(&self.read_secret()?)
    }

    /// Creates the directory for a pool that has a secret already; a directory with a different secret
    /// belongs to another pool, and is refused.
    pub fn create_with(&self, secret: &Secret) -> Result<()> {
        self.create_without_keys()?;
        if !exists(&self.secret_path())? {
            self.create_secret(secret)?;
        }
        if self.read_secret()? == *secret {
            return self.keep_host_key(secret);
        }
        Err(Error::new(
            ErrorKind::Exists,
            format!("{} holds the secret of another pool", self.path.display()),
        ))
    }

    /// Creates the directory alone, which `up` locks before it makes keys, or clears away another pool's.
    pub fn create_without_keys(&self) -> Result<()> {
        let base = self.path.parent().unwrap_or(Path::new("/"));
        make_private(base)?;
        make_private(&self.path)
    }

    /// Removes the directory and what lies in it.
    pub fn remove(&self) -> Result<()> {
        check_private(&self.path)?;
        fs::remove_dir_all(&self.path)
            .map_err(|error| Error::from_io(&error, format!("removing {}", self.path.display())))
    }

    /// Path of the secret.
    #[must_use]
    pub fn secret_path(&self) -> PathBuf {
        self.path.join("secret")
    }

    /// Path of `pool.json`.
    #[must_use]
    pub fn pool_file_path(&self) -> PathBuf {
        self.path.join("pool.json")
    }

    /// Path of a server's Unix socket.
    #[must_use]
    pub fn socket_path(&self, server: ServerId) -> PathBuf {
        self.path.join(format!("server-{}.sock", server.0))
    }

    /// Path of a server's log.
    #[must_use]
    pub fn log_path(&self, server: ServerId) -> PathBuf {
        self.path.join(format!("server-{}.log", server.0))
    }

    /// The pool's secret.
    pub fn read_secret(&self) -> Result<Secret> {
        read_secret_file(&self.secret_path())
    }

    /// Path of the host key.
    #[must_use]
    pub fn host_key_path(&self) -> PathBuf {
        self.path.join("host-key")
    }

    /// The host key that lies beside the secret; it opens sessions that act for the users of this machine.
    pub fn read_host_key(&self) -> Result<HostKey> {
        read_host_key_file(&self.host_key_path())
    }

    /// Writes the secret, unless another process has done so first.
    fn create_secret(&self, secret: &Secret) -> Result<()> {
        create_private_file(&self.secret_path(), format!("{}\n", secret.to_hex()).as_bytes()).map(|_| ())
    }

    /// Derives the host key again if it is missing or of an older version.
    fn keep_host_key(&self, secret: &Secret) -> Result<()> {
        let host_key = secret.shared_host_key();
        if self.read_host_key().is_ok_and(|kept| kept == host_key) {
            return Ok(());
        }
        replace_private_file(&self.host_key_path(), format!("{}\n", host_key.to_line()).as_bytes())
    }

    /// What `ramlace up` wrote; NotFound, with the next step, when no pool was started.
    pub fn read_pool_file(&self) -> Result<PoolFile> {
        let path = self.pool_file_path();
        if !exists(&path)? {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "there is no pool '{}' here; start one with 'ramlace up{}'",
                    self.name,
                    if self.name == POOL_DEFAULT { String::new() } else { format!(" --pool {}", self.name) }
                ),
            ));
        }
        let text = read_private(&path, POOL_FILE_BYTES_MAX)?;
        serde_json::from_slice(&text).map_err(|error| {
            Error::new(ErrorKind::Corrupt, format!("{} makes no sense: {error}", path.display()))
        })
    }

    /// Replaces `pool.json` atomically.
    pub fn write_pool_file(&self, file: &PoolFile) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(file).expect("a pool file can be written as JSON");
        text.push(b'\n');
        replace_private_file(&self.pool_file_path(), &text)
    }

    /// Removes `pool.json` when it is there: the pool is down.
    pub fn remove_pool_file(&self) -> Result<()> {
        match fs::remove_file(self.pool_file_path()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::from_io(&error, format!("removing {}", self.pool_file_path().display())))
            }
            _ => Ok(()),
        }
    }

    /// The directories of this user's pools on this machine, sorted by name.
    pub fn list() -> Result<Vec<PoolDirectory>> {
        let base = base_directory()?;
        if !exists(&base)? {
            return Ok(Vec::new());
        }
        check_private(&base)?;
        let entries = fs::read_dir(&base)
            .map_err(|error| Error::from_io(&error, format!("listing {}", base.display())))?;
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| check_name(name).is_ok())
            .collect();
        names.sort();
        Ok(names.iter().filter_map(|name| PoolDirectory::within(&base, name).ok()).collect())
    }
}

fn new_secret() -> Result<Secret> {
    let mut failure = None;
    let secret = Secret::generate(&mut |bytes| failure = crate::entropy::fill(bytes).err());
    failure.map_or(Ok(secret), Err)
}

/// Reads a secret: a file of the caller that nobody else can read, with 64 hexadecimal digits.
pub fn read_secret_file(path: &Path) -> Result<Secret> {
    read_key_file(path, "secret", Secret::from_hex)
}

/// Reads a host key: a file of the caller that nobody else can read, with one line.
pub fn read_host_key_file(path: &Path) -> Result<HostKey> {
    read_key_file(path, "host key", HostKey::from_line)
}

fn read_key_file<T>(path: &Path, what: &str, decode: fn(&str) -> Result<T>) -> Result<T> {
    if !exists(path)? {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("the pool's {what} {} is not there; 'ramlace up' makes one", path.display()),
        ));
    }
    let bytes = read_private(path, KEY_FILE_BYTES_MAX)?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    decode(text)
        .map_err(|error| Error::new(ErrorKind::Corrupt, format!("{}: {}", path.display(), error.message())))
}

/// A pool's name is a file name that needs no quoting.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty()
        || name.len() > POOL_NAME_BYTES_MAX
        || name.starts_with('.')
        || !name.chars().all(plain)
    {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "'{}' is no name of a pool: use 1 to {POOL_NAME_BYTES_MAX} letters, digits, '-', '_' and '.'",
                name.escape_debug()
            ),
        ));
    }
    Ok(())
}

/// The directory of this user's pools, and of what belongs to them; created (0700) when it is missing.
pub fn runtime_directory() -> Result<PathBuf> {
    let base = base_directory()?;
    make_private(&base)?;
    Ok(base)
}

fn make_private(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Error::from_io(&error, format!("creating {}", path.display()))),
    }
    check_private(path)
}

/// `$XDG_RUNTIME_DIR/ramlace`, else `ramlace-UID` below the system's temporary directory.
fn base_directory() -> Result<PathBuf> {
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
        && runtime.is_absolute()
        && fs::symlink_metadata(&runtime).is_ok_and(|found| found.is_dir() && found.uid() == user())
    {
        return Ok(runtime.join("ramlace"));
    }
    let temporary = std::env::temp_dir();
    if !temporary.is_absolute() {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("TMPDIR is '{}', which is no absolute path", temporary.display()),
        ));
    }
    Ok(temporary.join(format!("ramlace-{}", user())))
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn exists(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::from_io(&error, format!("looking at {}", path.display()))),
    }
}

/// Refuses a symbolic link, a directory of another user, and one that others can enter.
fn check_private(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path)
        .map_err(|error| Error::from_io(&error, format!("looking at {}", path.display())))?;
    check_owner(path, &found)?;
    if !found.is_dir() {
        return Err(Error::new(ErrorKind::NotDirectory, format!("{} is no directory", path.display())));
    }
    Ok(())
}

fn check_owner(path: &Path, found: &fs::Metadata) -> Result<()> {
    let refuse = |why: String, step: &str| {
        Err(Error::new(ErrorKind::Denied, format!("{} {why}; {step}", path.display())))
    };
    if found.file_type().is_symlink() {
        return refuse("is a symbolic link".into(), "remove it, or set XDG_RUNTIME_DIR");
    }
    if found.uid() != user() {
        return refuse(
            format!("belongs to user {}, not to user {}", found.uid(), user()),
            "set XDG_RUNTIME_DIR to a directory of your own",
        );
    }
    if found.permissions().mode() & 0o077 != 0 {
        return refuse("is open to other users".into(), "take their rights with chmod go-rwx");
    }
    Ok(())
}

fn read_private(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let doing = |error| Error::from_io(&error, format!("reading {}", path.display()));
    let file = open_plain(path).map_err(doing)?;
    let found = file.metadata().map_err(doing)?;
    check_owner(path, &found)?;
    if !found.is_file() || found.len() > bytes_max {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("{} is no plain file of at most {bytes_max} bytes", path.display()),
        ));
    }
    let mut bytes = Vec::with_capacity(found.len() as usize);
    file.take(bytes_max).read_to_end(&mut bytes).map_err(doing)?;
    Ok(bytes)
}

fn open_plain(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn pool_file() -> PoolFile {
        PoolFile {
            name: "lab".into(),
            pool: "00".repeat(16),
            coordinator: 0,
            servers: vec![PoolFileServer {
                server: 0,
                tcp: "127.0.0.1:1".into(),
                unix: Some("/x/server-0.sock".into()),
                supervisor_pid: 7,
                host: None,
            }],
            version: "0.1.0".into(),
            hosts: None,
        }
    }

    #[test]
    fn a_pool_is_created_once_and_private() {
        let scratch = Scratch::new();
        let directory = PoolDirectory::within(&scratch.path().join("base"), "lab").unwrap();
        assert!(!directory.exists().unwrap());
        assert_eq!(directory.read_pool_file().unwrap_err().kind(), ErrorKind::NotFound);
        directory.create().unwrap();
        let secret = directory.read_secret().unwrap();
        directory.create().unwrap();
        assert_eq!(directory.read_secret().unwrap(), secret);
        assert_ne!(secret.to_hex(), "0".repeat(64));
        assert_eq!(fs::metadata(directory.path()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(directory.secret_path()).unwrap().mode() & 0o777, 0o600);
        directory.write_pool_file(&pool_file()).unwrap();
        assert_eq!(directory.read_pool_file().unwrap(), pool_file());
        directory.remove().unwrap();
        assert!(!directory.exists().unwrap());
    }

    #[test]
    fn of_many_that_create_a_pool_at_once_all_have_one_secret() {
        for _ in 0..20 {
            let scratch = Scratch::new();
            let begin = std::sync::Barrier::new(8);
            let secrets: Vec<Secret> = std::thread::scope(|scope| {
                let create = || {
                    let directory = PoolDirectory::within(scratch.path(), "lab").unwrap();
                    begin.wait();
                    directory.create().unwrap();
                    assert_eq!(
                        directory.read_host_key().unwrap(),
                        directory.read_secret().unwrap().shared_host_key()
                    );
                    directory.read_secret().unwrap()
                };
                let all: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            assert!(secrets.iter().all(|secret| *secret == secrets[0]));
            let left = fs::read_dir(scratch.path().join("lab")).unwrap().count();
            assert_eq!(left, 2, "a secret and a host key");
        }
    }

    #[test]
    fn a_given_secret_is_kept_and_another_pools_is_not_replaced() {
        let scratch = Scratch::new();
        let directory = PoolDirectory::within(scratch.path(), "lab").unwrap();
        let (mine, other) = (Secret::from_bytes([1; 32]), Secret::from_bytes([2; 32]));
        directory.create_with(&mine).unwrap();
        directory.create_with(&mine).unwrap();
        assert_eq!(directory.create_with(&other).unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(directory.read_secret().unwrap(), mine);
        assert_eq!(fs::metadata(directory.secret_path()).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_pool_of_several_machines_says_which_servers_are_here() {
        let scratch = Scratch::new();
        let directory = PoolDirectory::within(scratch.path(), "lab").unwrap();
        directory.create().unwrap();
        let mut file = pool_file();
        directory.write_pool_file(&file).unwrap();
        let text = fs::read_to_string(directory.pool_file_path()).unwrap();
        assert!(!text.contains("host"), "a pool of one machine speaks of none: {text}");
        file.servers[0].unix = None;
        file.servers[0].host = Some("node1".into());
        file.hosts = Some(PoolFileHosts {
            started_from: "head".into(),
            here: Some("node2".into()),
            hosts: vec!["node1".into(), "node2".into()],
            transport: vec!["ssh".into()],
            remote_command: vec!["ramlace".into()],
        });
        directory.write_pool_file(&file).unwrap();
        assert_eq!(directory.read_pool_file().unwrap(), file);
    }

    #[test]
    fn links_and_open_directories_are_refused() {
        let scratch = Scratch::new();
        let open = scratch.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let error = PoolDirectory::within(&open, "lab").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("/tmp", open.join("lab")).unwrap();
        let error = PoolDirectory::within(&open, "lab").unwrap_err();
        assert!(error.message().contains("symbolic link"), "{error}");
    }

    #[test]
    fn a_secret_that_others_can_read_is_no_secret() {
        let scratch = Scratch::new();
        let directory = PoolDirectory::within(scratch.path(), "lab").unwrap();
        directory.create().unwrap();
        fs::set_permissions(directory.secret_path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(directory.read_secret().unwrap_err().kind(), ErrorKind::Denied);
        for text in ["", "zz", &"g".repeat(64), &"a".repeat(63), &"a".repeat(300)] {
            fs::write(directory.secret_path(), text).unwrap();
            fs::set_permissions(directory.secret_path(), fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(directory.read_secret().unwrap_err().kind(), ErrorKind::Corrupt, "{text}");
        }
    }

    #[test]
    fn names_stay_in_their_directory() {
        for name in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(33)] {
            assert_eq!(check_name(name).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
        }
        check_name("lab-2_x.y").unwrap();
    }
}
