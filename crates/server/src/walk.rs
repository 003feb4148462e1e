//! Path resolution: one request resolves as many components of a path as lie on this server.

use std::rc::Rc;

use ramlace_base::{Error, ErrorKind, InodeId, Name, Redirect, Result, limits};
use ramlace_wire::inline::{Bytes, ReadInline};
use ramlace_wire::namespace::{GetAttributes, InodeInfo, Lookup};
use ramlace_wire::walk::{Walk, Walked};
use ramlace_wire::{ClusterMap, Credentials, ErrorBody, FileKind};

use crate::gate::Call;
use crate::server::{Outcome, Server};

impl Server {
    /// Resolves the names as long as their entries are in slots of this server.
    pub async fn walk(self: &Rc<Self>, header: &Call, who: &Credentials, request: Walk) -> Outcome<Walked> {
        let count = request.names.len();
        if count == 0 || count > limits::WALK_NAMES_MAX {
            let most = limits::WALK_NAMES_MAX;
            let text = format!("a walk has from 1 to {most} names, not {count}");
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let mut walked = Walked { steps: Vec::with_capacity(count), stopped: None, info: None, bytes: None };
        let (mut parent, mut slot) = (request.from, header.slot);
        for name in request.names {
            let admitted = self.admit_slot(header, slot).await;
            match admitted {
                Err(refusal) if walked.steps.is_empty() => return Err(refusal),
                Err(_) => return Ok(walked),
                Ok(_) => self.notice_lost_slots()?,
            }
            let found = match self.query(who, slot, &Lookup { parent, name }) {
                Ok(found) => found,
                Err(error) if walked.steps.is_empty() => return Err(error.into()),
                Err(error) => {
                    walked.stopped = is_final(error.kind()).then(|| ErrorBody::new(&error));
                    return Ok(walked);
                }
            };
            (parent, slot) = (found.inode, found.inode.slot());
            let goes_on = found.kind == FileKind::Directory;
            walked.steps.push(found);
            if !goes_on {
                break;
            }
        }
        if walked.steps.len() == count && request.info && self.admit_slot(header, slot).await.is_ok() {
            walked.info = self.info_of(who, parent);
            walked.bytes =
                walked.info.as_ref().filter(|_| request.bytes).and_then(|info| self.bytes_of(who, info));
        }
        Ok(walked)
    }

    /// Checks that a path leads to this directory now, as far as this server can see: all directories on it
    /// are in its own slots, and there is no link among them.
    pub fn check_path(
        self: &Rc<Self>,
        call: &Call,
        who: &Credentials,
        map: &ClusterMap,
        path: &[Name],
        parent: Option<InodeId>,
    ) -> Result<()> {
        let mut here = InodeId::ROOT;
        for name in path {
            call.saw(here.slot());
            let is_mine = map.primary(here.slot()) == Some(self.me);
            let lookup = Lookup { parent: here, name: name.clone() };
            match is_mine.then(|| self.query(who, here.slot(), &lookup)) {
                Some(Ok(found)) if found.kind == FileKind::Directory => here = found.inode,
                _ => return Err(astray()),
            }
        }
        if Some(here) == parent { Ok(()) } else { Err(astray()) }
    }

    /// What this server alone can say; `None` for a spread directory. A client that needs what is missing
    /// asks for it, and gets the reason.
    fn info_of(self: &Rc<Self>, who: &Credentials, inode: InodeId) -> Option<InodeInfo> {
        let info = self.query(who, inode.slot(), &GetAttributes { inode }).ok()?;
        info.partitions.is_empty().then_some(info)
    }

    fn bytes_of(self: &Rc<Self>, who: &Credentials, info: &InodeInfo) -> Option<Bytes> {
        if !info.inline || info.attributes.kind != FileKind::File {
            return None;
        }
        let inode = info.attributes.inode;
        let request = ReadInline { inode, offset: 0, length: limits::INLINE_BYTES_MAX as u32, keep: false };
        // By the rights of the user, not by what the session has open.
        match self.query(who, inode.slot(), &request) {
            // A longer file continues with zeros behind its inline bytes: then these are not all of it.
            Ok(read) if read.size.size <= limits::INLINE_BYTES_MAX as u64 => {
                let mut bytes = read.bytes?;
                bytes.0.resize(read.size.size as usize, 0);
                self.counters.read_bytes(bytes.0.len() as u64);
                Some(bytes)
            }
            _ => None,
        }
    }
}

fn astray() -> Error {
    Error::new(
        ErrorKind::Redirect(Redirect::Astray),
        "the path leads elsewhere, as far as this server can see",
    )
}

/// Whether the same request would get the same answer again: other errors say where to ask, or when.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::NotDirectory | ErrorKind::Loop)
}
