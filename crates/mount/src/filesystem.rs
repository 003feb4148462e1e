//! The entry point of the kernel's requests: calls the method that handles each of them, and sends its result as the
//! reply.

use std::time::Duration;

use ramlace_base::{ByteRange, InodeId, Result};
use ramlace_client::{NewMode, acting_for};
use ramlace_fuse::{Entry, FileSystem, OpenFlags, Operation, Reply, Request, Scratch, Urgency};
use ramlace_wire::Mode;

use crate::data::{WriteFlags, Written};
use crate::kept_lists::is_list;
use crate::lost_stores::LOST_STORES_ATTRIBUTE;
use crate::mounted::PoolFileSystem;
use crate::names::new_mode;
use crate::refresh::{Answer, refreshed_by};
use crate::users::{credentials, needs_user};
use crate::xattrs::{answer_sized, is_rule};

/// Reading this attribute of a mount's directory shows how many requests of each kind the kernel has sent:
/// one line for each kind, with its name and the number.
pub const REQUESTS_ATTRIBUTE: &str = "user.ramlace.requests";
/// Shows the mount's pending messages to servers, one line for each server: its number, and how many
/// messages.
pub const PENDING_ATTRIBUTE: &str = "user.ramlace.pending";
/// To read it of anything in a mount sends what the mount has promised so far (`--metadata=behind`), and waits
/// until it is with the servers. It is empty.
pub const SYNC_ATTRIBUTE: &str = "user.ramlace.sync";

/// A call by a descriptor of a directory (`FUSE_IOCTL_DIR`).
const IOCTL_OF_DIRECTORY: u32 = 1 << 4;

impl PoolFileSystem {
    /// A thread's next request shows whether it has received the directories that it was notified of. A request
    /// for a list counts like one for attributes: the kernel sends both for directories that it walks
    /// through.
    fn note_thread(&self, request: &Request<'_>) {
        self.leases.asks(request.caller.pid);
        let attributes_of = match request.operation {
            Operation::Lookup { .. } => return,
            Operation::GetAttributes { .. } | Operation::StatX { .. } => Some(request.node),
            // Checks of rights during a walk.
            Operation::GetXattr { name, .. } if is_list(name) => Some(request.node),
            _ => None,
        };
        self.nodes.places.asks(request.caller.pid, attributes_of);
    }

    fn handle_any(&self, request: &mut Request<'_>, reply: Reply) {
        if let Some(reply) = self.handle_file(request, reply) {
            self.handle_name(request, reply);
        }
    }

    /// Requests about names.
    fn handle_name(&self, request: &Request<'_>, reply: Reply) {
        let parent = self.nodes.inode(request.node);
        match request.operation {
            Operation::Lookup { name } => {
                answer(reply, self.lookup(request.node, name, request.caller.pid), |reply, entry| {
                    if entry.attributes.mode & libc::S_IFMT == libc::S_IFREG {
                        self.leases.giving_entry(entry.node, entry.attributes.size);
                    }
                    self.counted(reply.entry(&entry), &entry)
                });
            }
            Operation::Symlink { name, target } => {
                answer(reply, self.symlink(parent, name, target), |reply, entry| {
                    self.tell_made(reply, &entry)
                });
            }
            Operation::MakeNode { name, mode, device, umask } => {
                let made = self.make_node(parent, name, (mode, umask), device);
                answer(reply, made, |reply, entry| self.tell_made(reply, &entry));
            }
            Operation::MakeDirectory { name, mode, umask } => {
                let made = self.make_directory(request.node, name, new_mode(mode, umask));
                answer(reply, made, |reply, entry| self.tell_made(reply, &entry));
            }
            Operation::Unlink { name } => done(reply, self.unlink(parent, name)),
            Operation::RemoveDirectory { name } => done(reply, self.remove_directory(request.node, name)),
            Operation::Rename { name, new_parent, new_name, flags } => {
                done(reply, self.rename((request.node, name), (new_parent, new_name), flags));
            }
            Operation::Link { node, name } => {
                let linked = self.link((node, self.nodes.inode(node)), parent, name);
                answer(reply, linked, |reply, (entry, _setting)| self.tell_made(reply, &entry));
            }
            Operation::Create { name, flags, mode, umask, .. } => {
                self.handle_create(request, reply, name, flags, new_mode(mode, umask));
            }
            Operation::TemporaryFile { flags, mode, umask } => {
                self.handle_temporary(request, reply, flags, new_mode(mode, umask));
            }
            Operation::ReadLink => {
                answer(reply, self.raw().read_link(parent), |reply, target| reply.data(&target));
            }
            _ => self.handle_directory(request, reply),
        }
    }

    fn handle_create(&self, request: &Request<'_>, reply: Reply, name: &[u8], flags: u32, mode: NewMode) {
        answer(reply, self.create(self.nodes.inode(request.node), name, mode, flags), |reply, created| {
            let (entry, number, flags, _setting) = created;
            let accepted = self.counted(reply.created(&entry, number, flags), &entry);
            self.unless_accepted(accepted, number)
        });
    }

    fn handle_temporary(&self, request: &Request<'_>, reply: Reply, flags: u32, mode: NewMode) {
        answer(reply, self.create_unnamed(self.nodes.inode(request.node), mode, flags), |reply, created| {
            let (entry, number, flags) = created;
            self.nodes.tell(self.nodes.inode(entry.node));
            let accepted = self.counted(reply.created(&entry, number, flags), &entry);
            self.unless_accepted(accepted, number)
        });
    }

    /// Replies with an entry that was created here.
    fn tell_made(&self, reply: Reply, entry: &Entry) -> bool {
        self.nodes.tell(self.nodes.inode(entry.node));
        self.counted(reply.entry(entry), entry)
    }

    /// The kernel was sent an entry; if it no longer wanted the reply (`accepted` is false), the lookup does
    /// not count.
    fn counted(&self, accepted: bool, entry: &Entry) -> bool {
        if !accepted {
            self.forget_lookups(entry.node, 1);
        }
        accepted
    }

    /// The kernel has forgotten so many entries that led to a node, or was not notified of them.
    fn forget_lookups(&self, node: u64, lookups: u64) {
        let inode = self.nodes.inode(node);
        if self.nodes.forget(inode, lookups) {
            // Before a server may be asked: what a new lookup brings meanwhile is its own.
            self.leases.node_forgotten(node);
            self.passthrough.forgotten(inode, || self.nodes.is_known(inode));
        }
    }

    /// A kernel that no longer wanted the reply will never release the file, so it is released here.
    fn unless_accepted(&self, accepted: bool, number: u64) -> bool {
        if !accepted {
            self.release(number);
        }
        accepted
    }

    /// Requests about directories as a whole, and attributes of anything.
    fn handle_directory(&self, request: &Request<'_>, reply: Reply) {
        let inode = self.nodes.inode(request.node);
        match request.operation {
            // A listing needs no state here: a cookie says where it continues.
            Operation::OpenDirectory { .. } => {
                reply.opened(0, OpenFlags::default());
            }
            Operation::ReadDirectory { offset, size, .. } => {
                let entries = self.read_directory(inode, offset, size);
                answer(reply, entries, |reply, entries| reply.directory(&entries));
            }
            Operation::ReleaseDirectory { .. } => {
                reply.ok();
            }
            Operation::FsyncDirectory { .. } => done(reply, self.sync_directory(inode)),
            Operation::SyncFs => done(reply, self.raw().sync_all()),
            Operation::GetAttributes { .. } => {
                answer(reply, self.get_attributes(request.node, inode), |reply, (attributes, valid)| {
                    reply.attributes(&attributes, valid)
                });
            }
            Operation::SetAttributes(changes) => {
                let set = self.set_attributes((request.node, inode), &changes, request.caller);
                answer(reply, set, |reply, (attributes, _setting)| {
                    // The kernel uses these without checking whether something was recalled meanwhile.
                    reply.attributes(&attributes, Duration::ZERO)
                });
            }
            Operation::StatFs => {
                answer(reply, self.space.statfs(&self.pool), |reply, space| reply.statfs(&space));
            }
            Operation::SetXattr { name, .. } if refreshed_by(name).is_some() => {
                self.refresh(inode, name, reply, Answer::Ok);
            }
            // The same for programs that may only read: on a read-only mount, or a file that belongs to
            // another user.
            Operation::GetXattr { name, size } if refreshed_by(name).is_some() => {
                self.refresh(inode, name, reply, Answer::Value { size });
            }
            Operation::SetXattr { name, value, flags } if is_rule(name) => {
                done(reply, self.set_rule(inode, name, value, flags));
            }
            Operation::GetXattr { name, size } if is_rule(name) => {
                answer_sized(reply, self.get_rule(inode, name), size);
            }
            Operation::RemoveXattr { name } if is_rule(name) => done(reply, self.remove_rule(inode, name)),
            Operation::GetXattr { name, size } if name == LOST_STORES_ATTRIBUTE.as_bytes() => {
                answer_sized(reply, Ok(self.lost_stores.tell()), size);
            }
            Operation::GetXattr { name, size } if name == SYNC_ATTRIBUTE.as_bytes() => {
                answer_sized(reply, self.raw().sync_all().map(|()| Vec::new()), size);
            }
            Operation::GetXattr { name, size } if name == REQUESTS_ATTRIBUTE.as_bytes() => {
                answer_sized(reply, Ok(self.counts.to_string().into_bytes()), size);
            }
            Operation::GetXattr { name, size } if name == PENDING_ATTRIBUTE.as_bytes() => {
                answer_sized(reply, self.pending(), size);
            }
            Operation::SetXattr { name, value, flags } => {
                done(reply, self.set_xattr(inode, name, value, flags));
            }
            Operation::GetXattr { name, size } if is_list(name) => {
                answer_sized(reply, self.get_list(request.node, inode, name), size);
            }
            Operation::GetXattr { name, size } => answer_sized(reply, self.get_xattr(inode, name), size),
            Operation::ListXattr { size } => answer_sized(reply, self.list_xattrs(inode), size),
            Operation::RemoveXattr { name } => {
                done(reply, self.remove_xattr(inode, name, request.caller));
            }
            Operation::StatX { .. } => {
                answer(reply, self.statx(request.node, inode), |reply, (statx, valid)| {
                    reply.statx(&statx, valid)
                })
            }
            _ => {
                reply.error(libc::ENOSYS);
            }
        }
    }

    /// Sends what was promised of a directory; fails once for a file that was to be made there and is lost.
    fn sync_directory(&self, inode: InodeId) -> Result<()> {
        let sent = self.raw().sync(inode);
        let told = self.write_errors.tell_refresh(inode);
        sent.and(told)
    }

    /// The mount's pending messages, one line for each server.
    fn pending(&self) -> Result<Vec<u8>> {
        let pending = self.pool.pending_by_server()?;
        let lines = pending.iter().map(|(server, messages)| format!("{} {messages}\n", server.0));
        Ok(lines.collect::<String>().into_bytes())
    }

    /// Requests about open files and their bytes; returns the reply if the request was none of these.
    fn handle_file(&self, request: &mut Request<'_>, reply: Reply) -> Option<Reply> {
        let inode = self.nodes.inode(request.node);
        match request.operation {
            Operation::Open { flags, kill_suid } => {
                answer(reply, self.open(inode, flags, kill_suid), |reply, (number, flags)| {
                    let accepted = reply.opened(number, flags);
                    self.unless_accepted(accepted, number)
                });
            }
            Operation::Read { handle, offset, length, lock_owner, .. } => {
                // When a program reads, the request names an owner of locks.
                let for_pages = lock_owner.is_none();
                let range = ByteRange { start: offset, end: offset.saturating_add(length.into()) };
                // Held until the reply has been sent.
                let is_strict = for_pages && self.modes.of(inode) == Mode::Strict;
                let _reading = is_strict.then(|| self.strict.begin(inode, range));
                let for_pages = for_pages.then_some(request.unique);
                self.handle_read(request.scratch, reply, handle, range, for_pages);
            }
            Operation::Write { handle, offset, data, flags, cached, kill_suid, .. } => {
                let append = flags & libc::O_APPEND as u32 != 0;
                let sync = flags & (libc::O_DSYNC | libc::O_SYNC) as u32 != 0;
                let direct = flags & libc::O_DIRECT as u32 != 0;
                let flags = WriteFlags { cached, append, direct, kill_set_id: kill_suid };
                let asked = (request.unique, request.caller);
                let written = self.write(inode, handle, offset, data, flags, asked);
                // As fsync does.
                let told = || self.write_errors.tell(inode, &self.handles.get(handle)?.errors_reported);
                let written = match sync && written.is_ok() {
                    true => self.raw().sync(inode).and(told()).and(written),
                    false => written,
                };
                self.answer_write(reply, inode, written);
            }
            Operation::Fsync { handle, .. } => {
                // Both: what is lost of the file is reported by each descriptor that was open.
                let (sent, published) = (self.raw().sync(inode), self.publish(handle));
                done(reply, sent.and(published));
            }
            Operation::Flush { handle, lock_owner } => {
                let published = self.publish(handle);
                self.release_process_locks(inode, handle, lock_owner);
                done(reply, published);
            }
            Operation::GetLock { .. } | Operation::SetLock { .. } => self.handle_lock(request, reply),
            Operation::Release { handle, lock_owner, flock_unlock, .. } => {
                self.release_file_locks(inode, handle, flock_unlock.then_some(lock_owner));
                self.release(handle);
                reply.ok();
            }
            Operation::Ioctl { handle, command, input, flags, .. } if flags & IOCTL_OF_DIRECTORY == 0 => {
                self.ioctl(inode, handle, command, input, reply);
            }
            Operation::Seek { handle, offset, whence } => self.seek(inode, handle, offset, whence, reply),
            Operation::Allocate { handle, offset, length, mode } => {
                done(reply, self.allocate(inode, handle, offset, length, mode, request.caller));
            }
            _ => return Some(reply),
        }
        None
    }

    fn handle_read(
        &self,
        scratch: &mut Scratch,
        reply: Reply,
        handle: u64,
        range: ByteRange,
        for_pages: Option<u64>,
    ) {
        let buffer = scratch.bytes(range.length() as usize);
        match self.read(handle, range, buffer, for_pages) {
            Ok(read) => {
                reply.data(&buffer[..read.bytes]);
                if let Some((answering, behind)) = read.ends {
                    drop(answering);
                    behind.into_iter().for_each(|(inode, pages)| self.droppers.drop_later(inode, pages));
                }
                if let Some((inode, pages)) = read.drops {
                    self.droppers.drop_soon(inode, pages);
                }
            }
            Err(error) => _ = reply.error(error.errno()),
        }
    }

    /// Answers a write; if its pages may have older bytes in them, only after they were dropped.
    fn answer_write(&self, reply: Reply, inode: InodeId, written: Result<Written>) {
        match written {
            Ok(Written { bytes, suspect: None, request }) => {
                // Stores from now on are later than the write.
                drop(request);
                reply.written(bytes as u32);
            }
            Ok(Written { bytes, suspect: Some(suspect), request }) => {
                let pages = self.pages.clone();
                let then = Box::new(move || {
                    pages.write_answered(inode);
                    drop(request);
                    reply.written(bytes as u32);
                });
                self.droppers.drop_then(inode, suspect, then);
            }
            Err(error) => _ = reply.error(error.errno()),
        }
    }
}

impl FileSystem for PoolFileSystem {
    fn handle(&self, mut request: Request<'_>, reply: Reply) {
        self.leave_ended_session();
        self.note_thread(&request);
        if !self.for_users || !needs_user(&request.operation) {
            return self.handle_any(&mut request, reply);
        }
        match credentials(request.caller, &self.porter) {
            Ok(who) => acting_for(who, || self.handle_any(&mut request, reply)),
            Err(error) => {
                eprintln!("ramlace: {error}");
                reply.error(error.errno());
            }
        }
    }

    fn urgency(&self, operation: &Operation<'_>) -> Urgency {
        match operation {
            Operation::Write { cached: true, .. } => Urgency::WritesBack,
            Operation::Read { .. } => Urgency::Reads,
            _ => Urgency::Usual,
        }
    }

    fn waits(&self, unique: u64, operation: &Operation<'_>) -> Option<Box<dyn Send>> {
        match operation {
            Operation::Read { handle, offset, length, lock_owner: None, .. } => {
                let range = ByteRange { start: *offset, end: offset.saturating_add((*length).into()) };
                Some(Box::new(self.read_waits(*handle, range, unique)?))
            }
            Operation::Write { handle, offset, data, cached: false, .. } => {
                let range = ByteRange { start: *offset, end: offset.saturating_add(data.len() as u64) };
                Some(Box::new(self.write_waits(*handle, range)?))
            }
            _ => None,
        }
    }

    fn interrupt(&self, unique: u64) {
        self.locks.interrupt(unique);
    }

    fn unmounted(&self) {
        self.pool.end_waits();
    }

    fn destroy(&self) {
        self.locks.end();
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.forget_lookups(node, lookups);
    }
}

/// Answers with the value, or with the error's number.
fn answer<T>(reply: Reply, result: Result<T>, tell: impl FnOnce(Reply, T) -> bool) {
    match result {
        Ok(value) => tell(reply, value),
        Err(error) => reply.error(error.errno()),
    };
}

fn done(reply: Reply, result: Result<()>) {
    answer(reply, result, |reply, ()| reply.ok());
}
