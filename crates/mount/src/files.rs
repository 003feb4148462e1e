//! Opening, closing and changing files as a whole: handles, sizes, modes, times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result};
use ramlace_client::{File, OpenAnswer, Rights};
use ramlace_fuse::{
    AnsweringSet, Attributes as KernelAttributes, Caller, Entry, OpenFlags, SetAttributes as Changes,
    SetTime, StatX,
};
use ramlace_wire::inline::FirstPage;
use ramlace_wire::namespace::{CreateUnnamed, EntryLeased, NewMode, Opened, SetAttributes, TimeReason};
use ramlace_wire::{Attributes, LayoutHints, Mode};

use crate::attributes::{entry, kernel_attributes, timestamp};
use crate::handles::{OpenFile, SET_ID_BITS, Since, Writes};
use crate::kept::Named;
use crate::leases::{Believed, NameChange, Offered};
use crate::mounted::PoolFileSystem;
use crate::names::permissions;
use crate::versions::Version;

/// So often attributes are asked for again that are older than what was answered since.
const ASKED_AGAIN_MAX: u32 = 3;
/// One of the flags of an open: the kernel is about to execute the file (`__FMODE_EXEC`). Programs cannot set
/// it.
const FOR_EXECUTION: u32 = 0x20;

impl PoolFileSystem {
    /// The attributes of a node, and how long the kernel may use them. They are not older than what any other reply has
    /// contained since.
    ///
    /// This also serves `fstat`, for which the kernel names no descriptor: a program that has mapped the file relies on
    /// the size.
    fn attributes_in_order(&self, node: u64, inode: InodeId) -> Result<(Attributes, Duration)> {
        let asked = self.leases.asked_for_size(node);
        let is_in_order = |attributes: &Attributes| {
            let is_written = self.handles.is_written_here(inode);
            !self.handles.is_cached(inode) || self.leases.answering_size(node, attributes, is_written, asked)
        };
        let mut asked_again = 0;
        loop {
            let (attributes, valid) = self.attributes_now(inode)?;
            if is_in_order(&attributes) {
                return Ok((attributes, valid));
            }
            asked_again += 1;
            if asked_again == ASKED_AGAIN_MAX {
                // What seemed newer is not what the home knows.
                self.leases.size_changed(node);
            }
        }
    }

    /// The answer to GETATTR.
    pub(crate) fn get_attributes(&self, node: u64, inode: InodeId) -> Result<(KernelAttributes, Duration)> {
        let (attributes, valid) = self.attributes_in_order(node, inode)?;
        Ok((kernel_attributes(&attributes), valid))
    }

    /// The attributes for a reply whose size the kernel takes in whatever it was answered since it sent the request: they are
    /// not older than what any other reply has contained since, unless the request has set the size itself (`is_cut`). The
    /// second is to be dropped after the reply: others with a larger size wait until then.
    pub(crate) fn attributes_to_set(
        &self,
        node: u64,
        mut attributes: Attributes,
        is_cut: bool,
    ) -> (Attributes, Option<AnsweringSet>) {
        let inode = attributes.inode;
        if !self.handles.is_cached(inode) {
            return (attributes, None);
        }
        let mut asked_again = 0;
        loop {
            if let Some(setting) = self.leases.answering_set(node, &attributes, is_cut) {
                return (attributes, Some(setting));
            }
            asked_again += 1;
            match self.attributes_now(inode) {
                Ok((now, _)) if asked_again < ASKED_AGAIN_MAX => attributes = now,
                // What seemed newer is not what the home knows; or it does not answer, and has done what was asked.
                _ => self.leases.size_changed(node),
            }
        }
    }

    /// The attributes of an inode, now or when it was removed: a directory, a pipe or the like that a program
    /// here has open.
    fn attributes_now(&self, inode: InodeId) -> Result<(Attributes, Duration)> {
        // If the home does not answer, the next request reports that.
        let _ = self.passthrough.publish(inode);
        let since = self.handles.now();
        if let Some(attributes) = self.raw().promised_attributes(inode) {
            self.handles.note(&attributes, since);
            return Ok((attributes, Duration::ZERO));
        }
        if let Some((kept, asked)) = self.kept_attributes(inode) {
            self.handles.note(&kept, since);
            let valid =
                self.leases.attributes(asked, Offered::of(&kept, self.nodes.places.has_one_number(inode)));
            return Ok((kept, valid));
        }
        let asked = self.leases.ask();
        match self.lease_attributes(inode) {
            Ok(leased) => {
                self.handles.note(&leased.info.attributes, since);
                self.removed.note(&leased.info.attributes);
                let one_number = self.nodes.places.has_one_number(inode);
                let offered = Offered::of(&leased.info.attributes, leased.attributes && one_number);
                let valid = self.leases.attributes(asked, offered);
                // Stores of programs without asking change the times, and no server recalls that.
                let valid = if self.passthrough.may_be_stored_into(inode) { Duration::ZERO } else { valid };
                Ok((leased.info.attributes, valid))
            }
            Err(error) if error.kind() == ErrorKind::Stale => {
                self.removed.get(inode).map(|last| (last, Duration::ZERO)).ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn open(&self, inode: InodeId, flags: u32, kill_set_id: bool) -> Result<(u64, OpenFlags)> {
        let since = self.handles.now();
        let only_reads = is_for_reading(flags);
        if only_reads && let Some((file, answer)) = self.raw().reopen(inode, || self.attributes_since(inode))
        {
            let (number, open_flags) = self.adopt(file, &answer.opened, flags, since)?;
            self.handles.get(number)?.keep_answer(answer);
            return Ok((number, open_flags));
        }
        let asked = Instant::now();
        let (file, opened) = match flags & FOR_EXECUTION {
            0 => self.raw().open(inode, rights_of(flags))?,
            _ => self.raw().open_to_run(inode)?,
        };
        // A user who may not write through this open truncates the file by their own right, so the home has
        // to know the user.
        if kill_set_id && rights_of(flags).write && opened.info.attributes.mode & SET_ID_BITS != 0 {
            self.handles.note(&file.drop_set_id()?, since);
            self.leases.changed_here(&[inode]);
        }
        let (number, open_flags) = self.adopt(file, &opened, flags, since)?;
        // Named bytes may be many.
        if only_reads && opened.info.named.is_empty() {
            self.handles.get(number)?.keep_answer(OpenAnswer { opened, asked });
        }
        Ok((number, open_flags))
    }

    /// A file's attributes by a valid lease, and when that was first asked for.
    fn attributes_since(&self, inode: InodeId) -> Option<(Attributes, Instant)> {
        let (now, _) = self.kept_attributes(inode)?;
        // If others are kept by now, their lease is the newer one.
        Some((now, self.leases.attributes_since(inode)?))
    }

    pub(crate) fn create(
        &self,
        parent: InodeId,
        name: &[u8],
        mode: NewMode,
        flags: u32,
    ) -> Result<(Entry, u64, OpenFlags, Option<AnsweringSet>)> {
        let exclusive = flags & libc::O_EXCL as u32 != 0;
        let request = self.create_request(parent, name, mode, rights_of(flags), exclusive)?;
        let since = self.handles.now();
        let asked = self.leases.ask();
        let is_free = || {
            let kept = self.leases.kept_name(self.raw(), parent, name);
            kept.is_some_and(|(named, _)| named == Named::Absent)
        };
        let created = retry(|| self.raw().create_if_free(&request, &is_free));
        let after = created.as_ref().ok().and_then(|(_, opened)| opened.parent.as_ref());
        let change = match &created {
            Ok((file, opened)) if opened.leased.names && self.leases.names => NameChange::Made(file.inode()),
            Ok((file, _)) => NameChange::MadeOnce(file.inode()),
            Err(_) => NameChange::Perhaps,
        };
        self.leases.name_changed_here(asked, (parent, name), change, after);
        let (file, opened) = created?;
        let (number, open_flags) = self.adopt(file, &opened, flags, since)?;
        let made = &opened.info.attributes;
        // If the file existed before, or is stored into without asking, the kernel has to ask for the
        // attributes.
        let attributes =
            opened.leased.attributes && opened.created && !self.passthrough.may_be_stored_into(made.inode);
        let leased = EntryLeased { attributes, ..opened.leased };
        let mut entry = entry(made, self.leases.made(asked, (parent, leased), made));
        // It counts as known from here on. A FORGET of what the kernel knew of it before may have come after
        // `adopt`, and have ended what that had noted.
        self.modes.note(made.inode, self.handles.get(number)?.mode);
        self.passthrough.known(made.inode);
        if opened.created {
            return Ok((entry, number, open_flags, None));
        }
        let is_cut = flags & libc::O_TRUNC as u32 != 0;
        let (now, setting) = self.attributes_to_set(entry.node, made.clone(), is_cut);
        entry.attributes = kernel_attributes(&now);
        Ok((entry, number, open_flags, setting))
    }

    /// Gives an opened file a number, and says what the kernel may do with its pages. `since` was taken
    /// before its home was asked.
    fn adopt(&self, file: File, opened: &Opened, flags: u32, since: Since) -> Result<(u64, OpenFlags)> {
        let attributes = &opened.info.attributes;
        let mode = self.modes.of_opened(attributes.inode, opened.info.hints.rules.mode)?;
        let cut = flags & libc::O_TRUNC as u32 != 0 && attributes.size > 0;
        if cut {
            self.handles.make_hole(attributes.inode, 0);
        }
        if cut {
            let truncated = match rights_of(flags).write {
                true => file.truncate(0),
                // Opened for reading and truncated all the same: the mode allows it, which the kernel has
                // checked as well.
                false => self.raw().truncate(attributes.inode, 0).map(drop),
            };
            self.leases.answered_here(attributes.inode);
            truncated?;
            self.lost_stores.end(attributes.inode, ByteRange { start: 0, end: u64::MAX });
        }
        let version = Version::of(&opened.info);
        let file = Arc::new(file);
        // Stores into files under passthrough are not noticed.
        let passthrough = match mode {
            Mode::Strict => None,
            _ => self.passthrough.open(&file, if cut { 0 } else { attributes.size })?,
        };
        let passed_through = passthrough.is_some();
        let writes = self.writes_by(flags, mode, passed_through);
        let open = OpenFile::new(file, writes, passed_through, mode, version, &self.write_errors);
        let is_written = self.handles.is_written_here(attributes.inode);
        let number = self.handles.add(open, attributes, since);
        if rights_of(flags).write {
            // What is kept of its attributes will be outdated when it is closed.
            self.leases.forget_kept(attributes.inode);
        }
        let open = self.handles.get(number)?;
        let keep = !cut && !passed_through && self.locks.pages_are_of(&open.file, version, is_written);
        // Pages from before were cached by the rules of another mode.
        let keep = !self.modes.note(attributes.inode, mode) && keep;
        // Pages that were read from holes have no memory, and the kernel would not ask before a store.
        let keep = keep && !(rights_of(flags).write && self.versions.has_bare_pages(attributes.inode));
        if !keep {
            open.drops_pages(self.pages.drop_by_open(attributes.inode));
        }
        Ok((
            number,
            OpenFlags {
                keep_cache: keep,
                direct_io: writes != Writes::InPages,
                passthrough,
                ..OpenFlags::default()
            },
        ))
    }

    /// How what is written by a descriptor with these flags gets here.
    fn writes_by(&self, flags: u32, mode: Mode, passed_through: bool) -> Writes {
        let (rights, has) = (rights_of(flags), |flag: i32| flags & flag as u32 != 0);
        // It maps nothing and reads nothing back. For a relaxed mount nobody waits, and a promise recalls nothing.
        let only_writes = !rights.read && mode == Mode::Coherent && !self.promises;
        // Only the home knows where the end is: what is appended must not lie in a page that the kernel has put elsewhere.
        let is_beside = has(libc::O_APPEND)
            // Only a server reserves memory for what is written.
            || (passed_through && rights.write)
            // The bytes would be seen here before they are seen elsewhere.
            || (mode == Mode::Strict && rights.write)
            || (self.maps_direct_files && rights.write && (has(libc::O_DIRECT) || only_writes));
        if is_beside { Writes::Beside } else { Writes::InPages }
    }

    /// The last descriptor is closed. No program waits for this: `flush` has reported errors before.
    pub(crate) fn release(&self, number: u64) {
        if let Some(open) = self.handles.remove(number) {
            if open.mode != Mode::Strict {
                self.passthrough.close(&open.file, open.passthrough);
            }
            let (inode, wrote) = (open.file.inode(), open.file.rights().write);
            let asked = self.leases.ask();
            let answer = open.take_answer();
            // Another request may still use it.
            let file = Arc::into_inner(open).and_then(|open| Arc::into_inner(open.file));
            if let (Some(file), Some(answer)) = (&file, answer)
                && self.defer_close(file, answer)
            {
                return;
            }
            let now = file.and_then(File::let_go).filter(|now| now.allocated.is_some());
            if wrote {
                // Until now its times were known only here.
                self.leases.attributes_known_here(asked, inode, now.as_ref());
            }
            // An open for writing either has found this, or is seen here.
            if now.is_some_and(|now| self.is_changing(&now)) {
                self.leases.forget_kept(inode);
            }
        }
    }

    /// Leaves the close of a file at its home for later, as long as its attributes are kept by a lease that was there before its open: who
    /// removes it makes them recalled.
    fn defer_close(&self, file: &File, answer: OpenAnswer) -> bool {
        let (inode, asked) = (file.inode(), answer.asked);
        let Some(since) = self.leases.attributes_since(inode).filter(|since| *since <= asked) else {
            return false;
        };
        if !file.defer_close(answer) {
            return false;
        }
        // They may have been recalled in between.
        if self.leases.attributes_since(inode) != Some(since) {
            self.raw().hasten_close(inode);
        }
        true
    }

    /// The attributes for the reply, and what is to be dropped after it.
    pub(crate) fn set_attributes(
        &self,
        (node, inode): (u64, InodeId),
        changes: &Changes,
        caller: Caller,
    ) -> Result<(KernelAttributes, Option<AnsweringSet>)> {
        let (asked, since) = (self.leases.ask(), self.handles.now());
        let changed = self.change_attributes(inode, changes, caller);
        match &changed {
            Ok(Some(attributes))
                if attributes.allocated.is_some() && !self.handles.is_written_here(inode) =>
            {
                self.leases.attributes_changed_here(asked, attributes);
            }
            _ => self.leases.answered_here(inode),
        }
        if changes.size.is_some() {
            self.leases.size_changed(node);
        }
        let now = match changed? {
            Some(attributes) => {
                self.handles.note(&attributes, since);
                attributes
            }
            None => self.attributes_now(inode)?.0,
        };
        let (now, setting) = self.attributes_to_set(node, now, changes.size.is_some());
        Ok((kernel_attributes(&now), setting))
    }

    fn change_attributes(
        &self,
        inode: InodeId,
        changes: &Changes,
        caller: Caller,
    ) -> Result<Option<Attributes>> {
        // Earlier stores must not be reported with a time later than the one that is set now.
        let _ = self.passthrough.publish(inode);
        // The kernel writes back no page of the file before this is answered.
        let _cutting = changes.size.map(|_| self.pages.begin_cut(inode));
        let mut latest = None;
        if let Some(size) = changes.size {
            latest = Some(self.set_size(inode, size, changes, caller)?);
        }
        let chosen = |time: &SetTime| matches!(time, SetTime::At(_));
        let times = match [changes.accessed, changes.modified].iter().flatten().any(chosen) {
            true => TimeReason::Chosen,
            false => TimeReason::Now,
        };
        let request = SetAttributes {
            inode,
            mode: changes.mode.map(permissions),
            uid: changes.uid,
            gid: changes.gid,
            accessed: changes.accessed.map(timestamp),
            modified: changes.modified.map(timestamp),
            times,
        };
        if changes_anything(&request) {
            latest = Some(self.raw().set_attributes(&request)?);
        }
        Ok(latest)
    }

    /// For a descriptor the right to write was checked when it was opened; for a path it is checked now.
    fn set_size(&self, inode: InodeId, size: u64, changes: &Changes, caller: Caller) -> Result<Attributes> {
        self.handles.make_hole(inode, size);
        let set = self.set_size_at_home(inode, size, changes, caller)?;
        self.lost_stores.end(inode, ByteRange { start: size, end: u64::MAX });
        Ok(set)
    }

    fn set_size_at_home(
        &self,
        inode: InodeId,
        size: u64,
        changes: &Changes,
        caller: Caller,
    ) -> Result<Attributes> {
        match changes.handle.map(|number| self.handles.get(number)).transpose()? {
            Some(open) if open.file.rights().write => {
                if changes.kill_suid {
                    self.drop_set_id(&open.file, caller, || ())?;
                }
                if self.reserves {
                    open.file.reserve_growth(size, FirstPage::Locked)?;
                }
                open.file.set_size(size)
            }
            _ if self.reserves => {
                let (file, opened) = self.raw().open(inode, Rights { read: false, write: true })?;
                // By an open file the home does not see which user truncates.
                if changes.kill_suid && opened.info.attributes.mode & SET_ID_BITS != 0 {
                    self.clear_set_id(&file, caller)?;
                }
                file.reserve_growth(size, FirstPage::Locked)?;
                file.set_size(size)
            }
            // An open for reading may truncate as well, if the mode allows writing.
            _ => self.raw().truncate(inode, size),
        }
    }

    /// The answer to STATX. The kernel takes in its size as it does that of GETATTR.
    pub(crate) fn statx(&self, node: u64, inode: InodeId) -> Result<(StatX, Duration)> {
        let (attributes, valid) = self.attributes_in_order(node, inode)?;
        let created = Some((attributes.created.seconds(), attributes.created.subsecond_nanos()));
        Ok((StatX { attributes: kernel_attributes(&attributes), created }, valid))
    }

    /// A file without a name, for `O_TMPFILE`.
    pub(crate) fn create_unnamed(
        &self,
        parent: InodeId,
        mode: NewMode,
        flags: u32,
    ) -> Result<(Entry, u64, OpenFlags)> {
        let rights = rights_of(flags);
        let request = CreateUnnamed {
            parent,
            mode,
            read: rights.read,
            write: rights.write,
            layout: None,
            wish: self.raw().layout_wish(LayoutHints::default())?,
        };
        let since = self.handles.now();
        let (file, opened) = self.raw().create_unnamed(&request)?;
        let (number, open_flags) = self.adopt(file, &opened, flags, since)?;
        Ok((entry(&opened.info.attributes, Believed::NOT), number, open_flags))
    }
}

fn rights_of(flags: u32) -> Rights {
    match flags as i32 & libc::O_ACCMODE {
        libc::O_RDONLY => Rights { read: true, write: false },
        libc::O_WRONLY => Rights { read: false, write: true },
        _ => Rights { read: true, write: true },
    }
}

/// Whether a descriptor with these flags changes nothing, by its open either.
fn is_for_reading(flags: u32) -> bool {
    let rights = rights_of(flags);
    rights.read && !rights.write && flags & (libc::O_TRUNC as u32 | FOR_EXECUTION) == 0
}

fn changes_anything(request: &SetAttributes) -> bool {
    *request != SetAttributes { times: request.times, ..SetAttributes::nothing(request.inode) }
}

/// Repeats the work a few times if a name is removed and created meanwhile.
fn retry<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    const TRIES: usize = 8;
    for _ in 1..TRIES {
        match work() {
            Err(error) if error.kind() == ErrorKind::Retry => {}
            other => return other,
        }
    }
    work()
}

/// The error for a request that only some kernels send.
pub(crate) fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("a pool does not do that: {what}"))
}
