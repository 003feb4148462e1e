//! What pools and files report about themselves, as plain Python objects.

use pyo3::prelude::*;
use ramlace_wire::namespace::{DirectoryEntry, InodeInfo};
use ramlace_wire::{DeviceNumbers, FileKind, FileRules, LayoutHints, Mode};

fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// An inode's attributes, under the names of os.stat_result.
#[pyclass(frozen, get_all, module = "ramlace._native")]
pub(crate) struct Stat {
    st_mode: u32,
    st_ino: u64,
    st_nlink: u32,
    st_uid: u32,
    st_gid: u32,
    st_size: u64,
    st_blocks: u64,
    st_rdev: u64,
    st_atime_ns: i64,
    st_mtime_ns: i64,
    st_ctime_ns: i64,
    st_birthtime_ns: i64,
    kind: &'static str,
    generation: u64,
}

impl Stat {
    pub(crate) fn new(info: &InodeInfo) -> Stat {
        let attributes = &info.attributes;
        Stat {
            st_mode: attributes.kind.type_bits() | u32::from(attributes.mode),
            st_ino: attributes.inode.0,
            st_nlink: attributes.links,
            st_uid: attributes.uid,
            st_gid: attributes.gid,
            st_size: attributes.size,
            st_blocks: attributes.allocated.unwrap_or(attributes.size).div_ceil(512),
            st_rdev: device_number(attributes.device),
            st_atime_ns: attributes.accessed.nanos,
            st_mtime_ns: attributes.modified.nanos,
            st_ctime_ns: attributes.changed.nanos,
            st_birthtime_ns: attributes.created.nanos,
            kind: kind_name(attributes.kind),
            generation: attributes.generation.0,
        }
    }
}

/// The numbers as `os.makedev` joins them.
fn device_number(device: u32) -> u64 {
    let DeviceNumbers { major, minor } = DeviceNumbers::of(device);
    let (major, minor) = (u64::from(major), u64::from(minor));
    minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}

#[pymethods]
impl Stat {
    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.st_atime_ns)
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.st_mtime_ns)
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.st_ctime_ns)
    }

    #[getter]
    fn st_birthtime(&self) -> f64 {
        seconds(self.st_birthtime_ns)
    }

    fn __repr__(&self) -> String {
        format!(
            "<ramlace.Stat {} st_size={} st_mode=0o{:o} st_ino={:016x}>",
            self.kind, self.st_size, self.st_mode, self.st_ino
        )
    }
}

/// Where a file's bytes lie and its own mode, or what a directory hands down (`None` where it is silent).
#[pyclass(frozen, get_all, eq, module = "ramlace._native")]
#[derive(PartialEq, Eq)]
pub(crate) struct Layout {
    stripe_unit: Option<u64>,
    width: Option<u16>,
    copies: Option<u8>,
    mode: Option<&'static str>,
    reserve: bool,
    base_slot: Option<u16>,
    stride: Option<u16>,
    created_epoch: Option<u32>,
}

impl Layout {
    pub(crate) fn of(info: &InodeInfo) -> Layout {
        info.layout.as_ref().map_or_else(
            || Layout::of_directory(&info.hints),
            |layout| Layout::of_file(layout, info.hints.rules),
        )
    }

    pub(crate) fn of_file(layout: &ramlace_wire::Layout, rules: FileRules) -> Layout {
        Layout {
            stripe_unit: Some(layout.stripe_unit),
            width: Some(layout.width),
            copies: Some(layout.copies),
            mode: rules.mode.map(Mode::name),
            reserve: rules.reserve,
            base_slot: Some(layout.base_slot.0),
            stride: Some(layout.stride),
            created_epoch: Some(layout.created.0),
        }
    }

    fn of_directory(hints: &LayoutHints) -> Layout {
        Layout {
            stripe_unit: hints.stripe_unit,
            width: hints.width,
            copies: hints.copies,
            mode: hints.rules.mode.map(Mode::name),
            reserve: hints.rules.reserve,
            base_slot: None,
            stride: None,
            created_epoch: None,
        }
    }
}

#[pymethods]
impl Layout {
    fn __repr__(&self) -> String {
        let show = |value: Option<u64>| value.map_or("None".to_owned(), |number| number.to_string());
        format!(
            "<ramlace.Layout stripe_unit={} width={} copies={} mode={} reserve={}>",
            show(self.stripe_unit),
            show(self.width.map(u64::from)),
            show(self.copies.map(u64::from)),
            self.mode.unwrap_or("None"),
            if self.reserve { "True" } else { "False" }
        )
    }
}

/// An entry of a directory.
#[pyclass(frozen, get_all, module = "ramlace._native")]
pub(crate) struct DirEntry {
    name: Vec<u8>,
    inode: u64,
    kind: &'static str,
}

impl DirEntry {
    pub(crate) fn new(entry: &DirectoryEntry) -> DirEntry {
        DirEntry { name: entry.name.as_bytes().to_vec(), inode: entry.inode.0, kind: kind_name(entry.kind) }
    }
}

/// What the pool holds, over the servers that answered. Bytes.
#[pyclass(frozen, get_all, module = "ramlace._native")]
pub(crate) struct Capacity {
    total_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    file_bytes: u64,
    inodes: u64,
    inodes_max: u64,
    directory_inodes: u64,
    silent_servers: u32,
}

impl Capacity {
    pub(crate) fn new(capacity: &ramlace_client::Capacity) -> Capacity {
        Capacity {
            total_bytes: capacity.total_bytes,
            used_bytes: capacity.used_bytes,
            free_bytes: capacity.free_bytes,
            file_bytes: capacity.file_bytes,
            inodes: capacity.inodes,
            inodes_max: capacity.inodes_max,
            directory_inodes: capacity.directory_inodes,
            silent_servers: capacity.silent_servers,
        }
    }
}

#[pymethods]
impl Capacity {
    fn __repr__(&self) -> String {
        format!(
            "<ramlace.Capacity total_bytes={} used_bytes={} free_bytes={} inodes={} silent_servers={}>",
            self.total_bytes, self.used_bytes, self.free_bytes, self.inodes, self.silent_servers
        )
    }
}

/// What one server says of itself; `problem` says why the numbers are missing.
#[pyclass(frozen, get_all, module = "ramlace._native")]
pub(crate) struct ServerReport {
    server: u16,
    tcp: String,
    unix: String,
    problem: Option<String>,
    pid: Option<u32>,
    supervisor_pid: Option<u32>,
    restarts: Option<u32>,
    uptime_millis: Option<u64>,
    store_bytes: u64,
    used_bytes: Option<u64>,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
    requests: Option<u64>,
    notes: Vec<String>,
}

impl ServerReport {
    pub(crate) fn new(report: &ramlace_client::ServerReport) -> ServerReport {
        let status = report.status.as_ref().ok();
        ServerReport {
            server: report.entry.server.0,
            tcp: report.entry.tcp.clone(),
            unix: report.entry.unix.clone(),
            problem: report.status.as_ref().err().map(ToString::to_string),
            pid: status.map(|status| status.pid),
            supervisor_pid: status.map(|status| status.supervisor_pid),
            restarts: status.map(|status| status.restarts),
            uptime_millis: status.map(|status| status.uptime_millis),
            store_bytes: report.entry.store_bytes,
            used_bytes: status.map(|status| status.used_bytes),
            read_bytes: status.map(|status| status.read_bytes),
            written_bytes: status.map(|status| status.written_bytes),
            requests: status.map(|status| status.requests),
            notes: status.map(|status| status.notes.clone()).unwrap_or_default(),
        }
    }
}

#[pymethods]
impl ServerReport {
    fn __repr__(&self) -> String {
        match &self.problem {
            None => format!(
                "<ramlace.ServerReport {} at {} pid={}>",
                self.server,
                self.tcp,
                self.pid.unwrap_or(0)
            ),
            Some(problem) => format!("<ramlace.ServerReport {} at {}: {problem}>", self.server, self.tcp),
        }
    }
}
