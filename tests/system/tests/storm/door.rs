//! The two doors to one tree, behind one set of words. Errors are errno numbers.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use ramlace_base::ErrorKind;
use ramlace_client::{AttributeChanges, File, OpenOptions, Pool, RenameMode};
use ramlace_wire::FileKind;

/// What became of an operation.
pub type Told<T> = Result<T, i32>;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub kind: FileKind,
    pub mode: u16,
    pub links: u32,
    /// Of files.
    pub size: u64,
}

/// A way into the pool.
pub enum Door {
    Library(Pool),
    Mount(PathBuf),
}

/// An open file.
pub enum Held {
    Library(File),
    Mount(fs::File),
}

impl Door {
    pub fn create(&self, path: &str) -> Told<Held> {
        match self {
            Door::Library(pool) => {
                let options = OpenOptions { exclusive: true, ..OpenOptions::creating() };
                library(pool.open(path, &options)).map(Held::Library)
            }
            Door::Mount(_) => {
                let mut options = fs::OpenOptions::new();
                options.read(true).write(true).create_new(true).mode(0o644);
                kernel(options.open(self.at(path))).map(Held::Mount)
            }
        }
    }

    pub fn open(&self, path: &str) -> Told<Held> {
        match self {
            Door::Library(pool) => {
                let options = OpenOptions { write: true, ..OpenOptions::reading() };
                library(pool.open(path, &options)).map(Held::Library)
            }
            Door::Mount(_) => {
                kernel(fs::OpenOptions::new().read(true).write(true).open(self.at(path))).map(Held::Mount)
            }
        }
    }

    pub fn append(&self, path: &str, bytes: &[u8]) -> Told<()> {
        match self {
            Door::Library(pool) => {
                let options = OpenOptions { append: true, ..OpenOptions::default() };
                let file = library(pool.open(path, &options))?;
                library(file.append(bytes)).map(drop)
            }
            Door::Mount(_) => {
                let file = kernel(fs::OpenOptions::new().append(true).open(self.at(path)))?;
                kernel(io::Write::write_all(&mut &file, bytes))
            }
        }
    }

    pub fn truncate(&self, path: &str, size: u64) -> Told<()> {
        match self {
            Door::Library(pool) => library(pool.truncate(path, size)).map(drop),
            Door::Mount(_) => kernel(fs::OpenOptions::new().write(true).open(self.at(path)))
                .and_then(|file| kernel(file.set_len(size))),
        }
    }

    pub fn chmod(&self, path: &str, mode: u16) -> Told<()> {
        match self {
            Door::Library(pool) => {
                let changes = AttributeChanges { mode: Some(mode), ..AttributeChanges::default() };
                library(pool.set_attributes(path, &changes)).map(drop)
            }
            Door::Mount(_) => {
                kernel(fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode.into())))
            }
        }
    }

    pub fn mkdir(&self, path: &str) -> Told<()> {
        match self {
            Door::Library(pool) => library(pool.mkdir(path, 0o755)).map(drop),
            Door::Mount(_) => kernel(fs::create_dir(self.at(path))),
        }
    }

    pub fn rmdir(&self, path: &str) -> Told<()> {
        match self {
            Door::Library(pool) => library(pool.rmdir(path)),
            Door::Mount(_) => kernel(fs::remove_dir(self.at(path))),
        }
    }

    pub fn unlink(&self, path: &str) -> Told<()> {
        match self {
            Door::Library(pool) => library(pool.unlink(path)),
            Door::Mount(_) => kernel(fs::remove_file(self.at(path))),
        }
    }

    pub fn link(&self, old: &str, new: &str) -> Told<()> {
        match self {
            Door::Library(pool) => library(pool.link(old, new)).map(drop),
            Door::Mount(_) => kernel(fs::hard_link(self.at(old), self.at(new))),
        }
    }

    pub fn symlink(&self, target: &str, path: &str) -> Told<()> {
        match self {
            Door::Library(pool) => library(pool.symlink(target, path)).map(drop),
            Door::Mount(_) => kernel(std::os::unix::fs::symlink(target, self.at(path))),
        }
    }

    pub fn read_link(&self, path: &str) -> Told<Vec<u8>> {
        match self {
            Door::Library(pool) => library(pool.read_link(path)),
            Door::Mount(_) => {
                kernel(fs::read_link(self.at(path))).map(|path| path.into_os_string().into_encoded_bytes())
            }
        }
    }

    pub fn rename(&self, old: &str, new: &str, mode: RenameMode) -> Told<()> {
        match self {
            Door::Library(pool) => library(pool.rename(old, new, mode)),
            Door::Mount(_) => {
                let flags = match mode {
                    RenameMode::Replace => rustix::fs::RenameFlags::empty(),
                    RenameMode::Keep => rustix::fs::RenameFlags::NOREPLACE,
                    RenameMode::Exchange => rustix::fs::RenameFlags::EXCHANGE,
                };
                let here = rustix::fs::CWD;
                rustix::fs::renameat_with(here, self.at(old), here, self.at(new), flags)
                    .map_err(rustix::io::Errno::raw_os_error)
            }
        }
    }

    pub fn stat(&self, path: &str) -> Told<Seen> {
        match self {
            Door::Library(pool) => {
                let attributes = library(pool.lstat(path))?.attributes;
                let is_file = attributes.kind == FileKind::File;
                Ok(Seen {
                    kind: attributes.kind,
                    mode: attributes.mode,
                    links: attributes.links,
                    size: if is_file { attributes.size } else { 0 },
                })
            }
            Door::Mount(_) => {
                let found = kernel(fs::symlink_metadata(self.at(path)))?;
                let kind = match found.file_type() {
                    kind if kind.is_dir() => FileKind::Directory,
                    kind if kind.is_symlink() => FileKind::Symlink,
                    _ => FileKind::File,
                };
                Ok(Seen {
                    kind,
                    mode: (found.mode() & 0o7777) as u16,
                    links: found.nlink() as u32,
                    size: if kind == FileKind::File { found.len() } else { 0 },
                })
            }
        }
    }

    /// The names in a directory, sorted.
    pub fn list(&self, path: &str) -> Told<Vec<String>> {
        let mut names: Vec<String> = match self {
            Door::Library(pool) => library(pool.read_dir(path))?
                .map(|entry| library(entry).map(|entry| text(entry.name.as_bytes())))
                .collect::<Told<_>>()?,
            Door::Mount(_) => kernel(fs::read_dir(self.at(path)))?
                .map(|entry| kernel(entry).map(|entry| text(entry.file_name().as_encoded_bytes())))
                .collect::<Told<_>>()?,
        };
        names.sort();
        Ok(names)
    }

    fn at(&self, path: &str) -> PathBuf {
        let Door::Mount(directory) = self else { unreachable!("only a mount has paths of the kernel") };
        directory.join(path.trim_start_matches('/'))
    }
}

impl Held {
    pub fn write(&self, bytes: &[u8], offset: u64) -> Told<()> {
        match self {
            Held::Library(file) => library(file.write_at(bytes, offset)).map(|n| assert_eq!(n, bytes.len())),
            Held::Mount(file) => kernel(file.write_all_at(bytes, offset)),
        }
    }

    /// All that there is from `offset` on, at most `length` bytes.
    pub fn read(&self, offset: u64, length: usize) -> Told<Vec<u8>> {
        let (mut bytes, mut done) = (vec![0; length], 0);
        while done < length {
            let at = offset + done as u64;
            let more = match self {
                Held::Library(file) => library(file.read_at(&mut bytes[done..], at))?,
                Held::Mount(file) => kernel(file.read_at(&mut bytes[done..], at))?,
            };
            if more == 0 {
                break;
            }
            done += more;
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    pub fn close(self) -> Told<()> {
        match self {
            Held::Library(file) => library(file.close()),
            Held::Mount(file) => {
                drop(file);
                Ok(())
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the storm's names are text")
}

fn library<T>(result: ramlace_base::Result<T>) -> Told<T> {
    result.map_err(|error| {
        let loud = [ErrorKind::TimedOut, ErrorKind::HostDown, ErrorKind::Fatal, ErrorKind::Lost];
        assert!(!loud.contains(&error.kind()), "{error}");
        error.errno()
    })
}

fn kernel<T>(result: io::Result<T>) -> Told<T> {
    result.map_err(|error| error.raw_os_error().unwrap_or_else(|| panic!("{error}")))
}
