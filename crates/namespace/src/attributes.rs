//! Changes of attributes: mode, owner, times, what new files in a directory inherit, and how a file is
//! shared.

use ramlace_base::{Epoch, InodeId, Result, Slot, Timestamp, limits};
use ramlace_base::{Error, ErrorKind};
use ramlace_wire::namespace::{SetAttributes, SetLayout, TimeReason};
use ramlace_wire::peer::PartitionAttributes;
use ramlace_wire::{Credentials, Layout, LayoutHints, Mode};

use crate::command::{Effect, Reply};
use crate::entries::{check_copies, check_mode};
use crate::set_id::may_keep_group;
use crate::state::inode::{Body, Inode, SET_GID, right};
use crate::state::{Caller, SlotState, Step};

impl SlotState {
    pub(crate) fn set_attributes(
        &mut self,
        caller: Caller,
        request: SetAttributes,
        effects: &mut Vec<Effect>,
    ) -> Step {
        request.mode.map_or(Ok(()), check_mode)?;
        let inode = self.inode(request.inode)?;
        let wrote = match request.times {
            TimeReason::Wrote => self.has_open_for_writing(caller, request.inode),
            // The kernel of a host names the user who writes through an open file: the groups of that user
            // matter.
            TimeReason::WroteAndDropsSetId => self.session_writes(caller, request.inode),
            TimeReason::Chosen | TimeReason::Now => false,
        };
        check_may_set(inode, caller.who, &request, wrote)?;
        if let Body::Directory(directory) = &inode.body {
            directory.check_undisturbed(request.inode)?;
        }
        let spread = matches!(&inode.body, Body::Directory(directory) if directory.spread.is_some());
        if spread {
            return self.set_attributes_everywhere(caller, request, effects);
        }
        let inode = self.inode_mut(request.inode)?;
        set_owner(inode, caller.who, &request);
        set_mode(inode, caller.who, &request);
        set_times(inode, caller, &request);
        if (request.mode, request.uid, request.gid, request.accessed, request.modified)
            != (None, None, None, None, None)
        {
            inode.changed = caller.now;
        }
        Ok(Some(Reply::Attributes(Box::new(inode.attributes(request.inode)))))
    }

    /// Checks what a spread directory would have after the change, and sends it to all its slots.
    fn set_attributes_everywhere(
        &mut self,
        caller: Caller,
        request: SetAttributes,
        effects: &mut Vec<Effect>,
    ) -> Step {
        let inode = self.inode_mut(request.inode)?;
        let before = inode.partition_attributes(true);
        set_owner(inode, caller.who, &request);
        set_mode(inode, caller.who, &request);
        set_times(inode, caller, &request);
        let mut after = inode.partition_attributes(true);
        inode.set_partition_attributes(&before);
        after.accessed = after.accessed.filter(|_| request.accessed.is_some());
        after.modified = after.modified.filter(|_| request.modified.is_some());
        self.set_everywhere(caller, request.inode, after, true, effects)
    }

    pub(crate) fn set_layout(
        &mut self,
        caller: Caller,
        request: SetLayout,
        effects: &mut Vec<Effect>,
    ) -> Step {
        check_hints(request.hints)?;
        let inode = self.inode(request.inode)?;
        if matches!(inode.body, Body::File(_)) {
            return self.set_rules_of_file(caller, request);
        }
        let directory = inode.directory(request.inode)?;
        directory.check_undisturbed(request.inode)?;
        inode.check_owner(caller.who)?;
        if directory.spread.is_some() {
            let attributes =
                PartitionAttributes { hints: request.hints, ..inode.partition_attributes(false) };
            return self.set_everywhere(caller, request.inode, attributes, false, effects);
        }
        let inode = self.inode_mut(request.inode)?;
        if let Body::Directory(directory) = &mut inode.body {
            directory.hints = request.hints;
        }
        inode.changed = caller.now;
        Ok(Some(Reply::Done))
    }
}

impl SlotState {
    /// A file's own mode, and whether it reserves its memory. An open returns them, so they never change while a session has the file open.
    fn set_rules_of_file(&mut self, caller: Caller, SetLayout { inode: id, hints }: SetLayout) -> Step {
        let inode = self.inode(id)?;
        inode.check_owner(caller.who)?;
        if !hints.is_of_file() {
            let text = format!(
                "the layout of file {id} was fixed when it was created; its mode and its reserve alone can be set"
            );
            return Err(Error::new(ErrorKind::NotDirectory, text));
        }
        if inode.file(id)?.rules == hints.rules {
            return Ok(Some(Reply::Done));
        }
        if inode.opens > 0 {
            let text = format!(
                "file {id} is open somewhere; its mode and its reserve can be set when nobody has it open"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        if hints.rules.mode == Some(Mode::Strict) && self.has_passthrough(id) {
            let text = format!(
                "a machine's kernel has file {id}, and cannot be asked for what programs store there; copy it to a new file"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        self.inode_mut(id)?.changed = caller.now;
        self.file_mut(id).rules = hints.rules;
        Ok(Some(Reply::Done))
    }

    /// The hints that new files inherit from a directory whose entries are here; none if it has none.
    #[must_use]
    pub fn inherited_hints(&self, directory: InodeId) -> LayoutHints {
        match self.inodes.get(&directory).map(|inode| &inode.body) {
            Some(Body::Directory(directory)) => directory.hints,
            _ => LayoutHints::default(),
        }
    }

    /// The number of a directory's entries here.
    #[must_use]
    pub fn entries_here(&self, directory: InodeId) -> u64 {
        match self.inodes.get(&directory).map(|inode| &inode.body) {
            Some(Body::Directory(directory)) => directory.entries.len(),
            _ => 0,
        }
    }
}

/// As POSIX has it: the mode is the owner's; only the super-user may give the uid away; the owner may choose
/// among the owner's own groups; times are the owner's, and a writer may report the time of its write.
fn check_may_set(inode: &Inode, who: &Credentials, request: &SetAttributes, wrote: bool) -> Result<()> {
    if request.mode.is_some() || request.uid.is_some() || request.gid.is_some() {
        inode.check_owner(who)?;
    }
    let foreign_uid = request.uid.is_some_and(|uid| uid != inode.uid);
    let foreign_gid = request.gid.is_some_and(|gid| gid != inode.gid && !who.in_group(gid));
    if who.uid != 0 && (foreign_uid || foreign_gid) {
        return Err(Error::new(
            ErrorKind::NotPermitted,
            format!("user {} may not give it to another owner or group", who.uid),
        ));
    }
    let times = request.accessed.is_some() || request.modified.is_some();
    match request.times {
        TimeReason::Chosen if times => inode.check_owner(who),
        TimeReason::Now | TimeReason::Wrote | TimeReason::WroteAndDropsSetId
            if times && !wrote && !is_owner(inode, who) =>
        {
            inode.check_allows(who, right::WRITE)
        }
        _ => Ok(()),
    }
}

fn is_owner(inode: &Inode, who: &Credentials) -> bool {
    who.uid == 0 || who.uid == inode.uid
}

fn set_owner(inode: &mut Inode, who: &Credentials, request: &SetAttributes) {
    if request.uid.is_none() && request.gid.is_none() {
        return;
    }
    inode.owner_changes_by(who);
    inode.uid = request.uid.unwrap_or(inode.uid);
    inode.gid = request.gid.unwrap_or(inode.gid);
}

fn set_mode(inode: &mut Inode, who: &Credentials, request: &SetAttributes) {
    let Some(mode) = request.mode else { return };
    // No user may create a program that runs with the rights of a group that the user is not in.
    inode.set_mode(if may_keep_group(who, inode.gid) { mode } else { mode & !SET_GID });
}

/// The owner chooses any time. Who writes reports when that was, and who may write sets the present moment.
fn set_times(inode: &mut Inode, caller: Caller, request: &SetAttributes) {
    let chooses = is_owner(inode, caller.who) && !is_writing(request.times);
    let set = |at: &mut Timestamp, wanted: Option<Timestamp>| {
        if let Some(wanted) = wanted {
            *at = if chooses { wanted } else { at.after_write(wanted, caller.now) };
        }
    };
    set(&mut inode.accessed, request.accessed);
    set(&mut inode.modified, request.modified);
    if is_writing(request.times) && request.modified.is_some() {
        inode.content_changed_by(caller.who);
        if request.times == TimeReason::WroteAndDropsSetId {
            inode.drop_set_id_for_kernel();
        }
    }
}

fn is_writing(reason: TimeReason) -> bool {
    matches!(reason, TimeReason::Wrote | TimeReason::WroteAndDropsSetId)
}

/// Hints are checked as the layout that they would give with defaults elsewhere.
fn check_hints(hints: LayoutHints) -> Result<()> {
    let copies = hints.copies.unwrap_or(1);
    let layout = Layout {
        stripe_unit: hints.stripe_unit.unwrap_or(limits::STRIPE_UNIT_BYTES_DEFAULT),
        width: hints.width.unwrap_or(1),
        base_slot: Slot(0),
        stride: 1,
        copies,
        created: Epoch(0),
    };
    ramlace_layout::validate(&layout, limits::SLOTS_MAX)?;
    check_copies(copies)
}
