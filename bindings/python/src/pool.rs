//! A connected pool.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use ramlace_base::{Error, ErrorKind, limits};
use ramlace_client::{
    ArrayType, ConnectOptions, NewMode, OpenOptions, Order, Pool as ClientPool, PoolName, RenameMode,
};
use ramlace_wire::xattrs::XattrMode;
use ramlace_wire::{FileRules, LayoutHints, Mode};

use crate::error::{detached, exception, raised};
use crate::file::{File, Opened};
use crate::info::{Capacity, DirEntry, Layout, ServerReport, Stat};
use crate::owned::Owned;
use crate::waiting::{interruptible, timeout_of};

/// A connected pool. Paths are bytes; links at the end of a path are followed by `stat` alone.
#[pyclass(frozen, module = "ramlace._native")]
pub(crate) struct Pool {
    pool: Owned<ClientPool>,
}

/// How Python opens a file: the letters of its mode, and hints for a new file.
#[derive(FromPyObject)]
struct Open {
    #[pyo3(item)]
    read: bool,
    #[pyo3(item)]
    write: bool,
    #[pyo3(item)]
    append: bool,
    #[pyo3(item)]
    create: bool,
    #[pyo3(item)]
    exclusive: bool,
    #[pyo3(item)]
    truncate: bool,
    #[pyo3(item)]
    permissions: u16,
    #[pyo3(item)]
    umask: u16,
    #[pyo3(item)]
    stripe_unit: Option<u64>,
    #[pyo3(item)]
    width: Option<u16>,
    #[pyo3(item)]
    copies: Option<u8>,
    #[pyo3(item)]
    sharing: Option<String>,
}

/// The mode with a name.
fn mode_of(name: Option<&str>) -> PyResult<Option<Mode>> {
    let unknown =
        |name| PyValueError::new_err(format!("a mode is coherent, strict or relaxed, not {name:?}"));
    name.map(|name| Mode::named(name.as_bytes()).ok_or_else(|| unknown(name))).transpose()
}

#[pymethods]
impl Pool {
    /// Connects to the pool that a name, an address or a locator means; None: `RAMLACE_POOL`, else the default one.
    #[staticmethod]
    #[pyo3(signature = (pool, local, deadline_millis, cache_bytes))]
    fn connect(
        py: Python<'_>,
        pool: Option<&str>,
        local: bool,
        deadline_millis: Option<u32>,
        cache_bytes: u64,
    ) -> PyResult<Pool> {
        let pool = pool.map(str::to_owned);
        let mut options = ConnectOptions { pool, cache_bytes, ..ConnectOptions::default() };
        options.local &= local;
        options.deadline_millis = deadline_millis.unwrap_or(limits::DEADLINE_MILLIS_DEFAULT);
        Ok(Pool { pool: Owned::new(detached(py, || ClientPool::connect(&options))?) })
    }

    fn open(&self, py: Python<'_>, path: &[u8], how: Open) -> PyResult<File> {
        let options = OpenOptions {
            read: how.read,
            write: how.write,
            append: how.append,
            create: how.create,
            exclusive: how.exclusive,
            truncate: how.truncate,
            mode: NewMode { mode: how.permissions, umask: how.umask },
            hints: LayoutHints {
                stripe_unit: how.stripe_unit,
                width: how.width,
                copies: how.copies,
                ..LayoutHints::default()
            },
            sharing: mode_of(how.sharing.as_deref())?,
            ..OpenOptions::default()
        };
        Ok(File::new(Opened::File(detached(py, || self.pool.open(path, &options))?)))
    }

    /// Creates an array of zeros; `dtype` is numpy's string, `fortran` its order.
    #[expect(clippy::too_many_arguments, reason = "called from Python by name")]
    fn create_array(
        &self,
        py: Python<'_>,
        path: &[u8],
        shape: Vec<u64>,
        dtype: &str,
        fortran: bool,
        stripe_unit: Option<u64>,
        width: Option<u16>,
        permissions: u16,
        umask: u16,
    ) -> PyResult<File> {
        let mode = NewMode { mode: permissions, umask };
        let order = if fortran { Order::F } else { Order::C };
        let kind = raised(py, ArrayType::new(&shape, dtype, order))?;
        let hints = LayoutHints { stripe_unit, width, ..LayoutHints::default() };
        let array = detached(py, || self.pool.create_array(path, &kind, hints, mode))?;
        Ok(File::new(Opened::Array(array)))
    }

    /// Opens an array for reading and writing.
    fn open_array(&self, py: Python<'_>, path: &[u8]) -> PyResult<File> {
        Ok(File::new(Opened::Array(detached(py, || self.pool.open_array(path, true, None))?)))
    }

    fn stat(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Stat> {
        let info = detached(py, || if follow { self.pool.stat(path) } else { self.pool.lstat(path) })?;
        Ok(Stat::new(&info))
    }

    fn read<'py>(&self, py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &detached(py, || self.pool.read(path))?))
    }

    fn exists(&self, py: Python<'_>, path: &[u8]) -> PyResult<bool> {
        detached(py, || self.pool.exists(path))
    }

    /// The entries, and the exception that follows them when the listing could not be finished.
    fn read_directory(&self, py: Python<'_>, path: &[u8]) -> PyResult<(Vec<DirEntry>, Option<PyErr>)> {
        let (entries, broken) = detached(py, || {
            let mut entries = Vec::new();
            for entry in self.pool.read_dir(path)? {
                match entry {
                    Ok(entry) => entries.push(DirEntry::new(&entry)),
                    Err(error) => return Ok((entries, Some(error))),
                }
            }
            Ok((entries, None))
        })?;
        Ok((entries, broken.map(|error| exception(py, &error))))
    }

    fn mkdir(&self, py: Python<'_>, path: &[u8], permissions: u16, umask: u16) -> PyResult<()> {
        let mode = NewMode { mode: permissions, umask };
        detached(py, || self.pool.mkdir(path, mode).map(drop))
    }

    fn mkdir_all(&self, py: Python<'_>, path: &[u8], permissions: u16, umask: u16) -> PyResult<()> {
        let mode = NewMode { mode: permissions, umask };
        detached(py, || self.pool.mkdir_all(path, mode))
    }

    fn rmdir(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        detached(py, || self.pool.rmdir(path))
    }

    fn unlink(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        detached(py, || self.pool.unlink(path))
    }

    fn unlink_many(&self, py: Python<'_>, paths: Vec<PyBackedBytes>) -> Vec<Option<PyErr>> {
        let outcomes = py.detach(|| self.pool.unlink_many(&paths));
        outcomes.into_iter().map(|outcome| outcome.err().map(|error| exception(py, &error))).collect()
    }

    /// `mode`: 0 replaces what has the new name, 1 keeps it and fails, 2 exchanges the two.
    fn rename(&self, py: Python<'_>, old: &[u8], new: &[u8], mode: u8) -> PyResult<()> {
        let mode = match mode {
            0 => RenameMode::Replace,
            1 => RenameMode::Keep,
            _ => RenameMode::Exchange,
        };
        detached(py, || self.pool.rename(old, new, mode))
    }

    fn link(&self, py: Python<'_>, old: &[u8], new: &[u8]) -> PyResult<()> {
        detached(py, || self.pool.link(old, new).map(drop))
    }

    fn remove_tree(&self, py: Python<'_>, path: &[u8]) -> PyResult<()> {
        detached(py, || self.pool.remove_tree(path))
    }

    fn symlink(&self, py: Python<'_>, target: &[u8], path: &[u8]) -> PyResult<()> {
        detached(py, || self.pool.symlink(target, path).map(drop))
    }

    fn read_link(&self, py: Python<'_>, path: &[u8]) -> PyResult<Vec<u8>> {
        detached(py, || self.pool.read_link(path))
    }

    fn set_xattr(
        &self,
        py: Python<'_>,
        path: &[u8],
        follow: bool,
        name: &[u8],
        value: &[u8],
        flags: u8,
    ) -> PyResult<()> {
        let mode = match flags {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            _ => XattrMode::Replace,
        };
        detached(py, || self.pool.set_xattr(path, follow, name, value, mode))
    }

    fn get_xattr(&self, py: Python<'_>, path: &[u8], follow: bool, name: &[u8]) -> PyResult<Vec<u8>> {
        detached(py, || self.pool.get_xattr(path, follow, name))
    }

    fn list_xattrs(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<Vec<Vec<u8>>> {
        let names = detached(py, || self.pool.list_xattrs(path, follow))?;
        Ok(names.into_iter().map(Vec::from).collect())
    }

    fn remove_xattr(&self, py: Python<'_>, path: &[u8], follow: bool, name: &[u8]) -> PyResult<()> {
        detached(py, || self.pool.remove_xattr(path, follow, name))
    }

    fn truncate(&self, py: Python<'_>, path: &[u8], size: u64) -> PyResult<()> {
        detached(py, || self.pool.truncate(path, size).map(drop))
    }

    fn layout(&self, py: Python<'_>, path: &[u8]) -> PyResult<Layout> {
        let info = detached(py, || self.pool.get_layout(path))?;
        Ok(Layout::of(&info))
    }

    #[expect(clippy::too_many_arguments, reason = "called from Python by name")]
    fn set_layout(
        &self,
        py: Python<'_>,
        path: &[u8],
        stripe_unit: Option<u64>,
        width: Option<u16>,
        copies: Option<u8>,
        mode: Option<&str>,
        reserve: bool,
    ) -> PyResult<()> {
        let rules = FileRules { mode: mode_of(mode)?, reserve };
        detached(py, || self.pool.set_layout(path, LayoutHints { stripe_unit, width, copies, rules }))
    }

    /// Comes to a barrier and waits for all others; returns the number of the round.
    fn barrier(
        &self,
        py: Python<'_>,
        name: &[u8],
        parties: u32,
        member: u32,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let timeout = timeout_of(timeout)?;
        interruptible(py, |pause| self.pool.barrier_with(name, parties, member, timeout, pause))
    }

    fn statfs(&self, py: Python<'_>) -> PyResult<Capacity> {
        Ok(Capacity::new(&detached(py, || self.pool.statfs())?))
    }

    fn servers(&self, py: Python<'_>) -> PyResult<Vec<ServerReport>> {
        Ok(detached(py, || self.pool.status())?.iter().map(ServerReport::new).collect())
    }

    /// The pool's name on this machine, or None when it was reached by an address.
    fn name(&self) -> Option<String> {
        match self.pool.reached() {
            PoolName::Named(name) => Some(name.clone()),
            PoolName::At(_) | PoolName::Default => None,
        }
    }

    /// The path in this pool that a path or a locator means.
    fn path<'py>(&self, py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &detached(py, || self.pool.path_meant_by(text))?))
    }

    /// `host:port` of a server that is not forgotten.
    fn address(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || {
            let map = self.pool.map()?;
            let live = map.servers.iter().find(|entry| !entry.forgotten);
            live.map(|entry| entry.tcp.clone()).ok_or_else(|| {
                Error::new(ErrorKind::HostDown, "the pool has no server left that is not forgotten")
            })
        })
    }
}
