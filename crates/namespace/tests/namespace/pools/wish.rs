//! A client's request, in a form for the pool and for the model.

use std::collections::BTreeMap;

use ramlace_base::{Epoch, Error, ErrorKind, Generation, InodeId, Name, Result, Slot};
use ramlace_model::{Model, Node};
use ramlace_namespace::Op;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::inline::{Bytes, FirstPage, InlineMode, Promote, WriteInline};
use ramlace_wire::namespace::{self as wire, RenameMode};
use ramlace_wire::xattrs::{RemoveXattr, SetXattr, XattrMode, XattrName};
use ramlace_wire::{FileKind, Layout};

/// The one extended attribute of these runs.
pub const XATTR: &str = "user.a";

/// One mutation, on nodes of the model.
#[derive(Clone, Debug)]
pub enum Wish {
    Create { parent: Node, name: Name, exclusive: bool, base: u16 },
    Symlink { parent: Node, name: Name },
    MakeNode { parent: Node, name: Name, kind: FileKind },
    Unlink { parent: Node, name: Name },
    MakeDirectory { parent: Node, name: Name, home: Slot },
    RemoveDirectory { parent: Node, name: Name },
    Open { node: Node },
    Close { node: Node },
    Write { node: Node, offset: Option<u64>, bytes: Vec<u8> },
    Promote { node: Node },
    Extend { node: Node, size: u64 },
    Truncate { node: Node, size: u64 },
    SetMode { node: Node, mode: u16 },
    CreateUnnamed { parent: Node },
    SetXattr { node: Node, value: u8 },
    RemoveXattr { node: Node },
    Rename { parent: Node, name: Name, new_parent: Node, new_name: Name, mode: RenameMode },
    Link { node: Node, parent: Node, name: Name },
}

impl Wish {
    /// The node whose slot the request goes to.
    pub fn target(&self) -> Node {
        match self {
            Wish::Create { parent, .. }
            | Wish::Symlink { parent, .. }
            | Wish::MakeNode { parent, .. }
            | Wish::CreateUnnamed { parent }
            | Wish::Unlink { parent, .. }
            | Wish::MakeDirectory { parent, .. }
            | Wish::RemoveDirectory { parent, .. }
            | Wish::Rename { parent, .. }
            | Wish::Link { parent, .. } => *parent,
            Wish::Open { node }
            | Wish::Close { node }
            | Wish::Write { node, .. }
            | Wish::Promote { node }
            | Wish::Extend { node, .. }
            | Wish::Truncate { node, .. }
            | Wish::SetXattr { node, .. }
            | Wish::RemoveXattr { node }
            | Wish::SetMode { node, .. } => *node,
        }
    }

    /// Whether another slot may have a say in it.
    pub fn has_several_slots(&self) -> bool {
        match self {
            Wish::MakeDirectory { .. } | Wish::RemoveDirectory { .. } | Wish::SetMode { .. } => true,
            other => other.counts_links(),
        }
    }

    /// Whether it changes counts of links, or several names, in more than one step.
    pub fn counts_links(&self) -> bool {
        matches!(self, Wish::Rename { .. } | Wish::Link { .. } | Wish::Unlink { .. })
    }

    /// The nodes that the request names.
    pub fn takes(&self) -> Vec<Node> {
        match self {
            Wish::Rename { parent, new_parent, .. } => vec![*parent, *new_parent],
            Wish::Link { parent, node, .. } => vec![*parent, *node],
            other => vec![other.target()],
        }
    }

    /// The names that it changes.
    pub fn names(&self) -> Vec<(Node, Name)> {
        match self.clone() {
            Wish::Rename { parent, name, new_parent, new_name, .. } => {
                vec![(parent, name), (new_parent, new_name)]
            }
            Wish::Link { parent, name, .. } | Wish::Unlink { parent, name } => vec![(parent, name)],
            _ => Vec::new(),
        }
    }

    /// The entry that the request goes to.
    pub fn entry(&self) -> Option<(Node, &Name)> {
        match self {
            Wish::Create { parent, name, .. }
            | Wish::Symlink { parent, name }
            | Wish::MakeNode { parent, name, .. }
            | Wish::Unlink { parent, name }
            | Wish::MakeDirectory { parent, name, .. }
            | Wish::RemoveDirectory { parent, name }
            | Wish::Rename { parent, name, .. }
            | Wish::Link { parent, name, .. } => Some((*parent, name)),
            _ => None,
        }
    }

    /// The request; `slots` is the pool's number of slots.
    pub fn op(&self, inodes: &BTreeMap<Node, InodeId>, generation: Generation, slots: u16) -> Op {
        let inode = inodes[&self.target()];
        match self.clone() {
            Wish::Create { name, exclusive, base, .. } => {
                let layout = layout(base, slots);
                let named = vec![("dtype".to_owned(), b"<f8".to_vec())];
                Op::Create(wire::Create {
                    parent: inode,
                    name,
                    mode: 0o644.into(),
                    exclusive,
                    read: true,
                    write: true,
                    layout: Some(layout),
                    wish: wire::LayoutWish::default(),
                    named,
                })
            }
            Wish::Rename { name, new_parent, new_name, mode, .. } => {
                let new_parent = inodes[&new_parent];
                // The pool knows better, where the directory is spread.
                let new_slot = new_parent.slot();
                let rename = wire::Rename { parent: inode, name, new_parent, new_slot, new_name, mode };
                Op::Rename(Box::new(rename))
            }
            Wish::Link { node, name, .. } => {
                Op::Link(wire::Link { parent: inode, name, inode: inodes[&node] })
            }
            Wish::Symlink { name, .. } => {
                Op::Symlink(wire::Symlink { parent: inode, name, target: b"a/b".to_vec() })
            }
            Wish::CreateUnnamed { .. } => Op::CreateUnnamed(wire::CreateUnnamed {
                parent: inode,
                mode: 0o600.into(),
                read: true,
                write: true,
                layout: Some(layout(0, slots)),
                wish: wire::LayoutWish::default(),
            }),
            Wish::SetXattr { value, .. } => Op::SetXattr(SetXattr {
                inode,
                name: XattrName::new(XATTR).unwrap(),
                value: vec![value],
                mode: XattrMode::Any,
            }),
            Wish::RemoveXattr { .. } => {
                Op::RemoveXattr(RemoveXattr { inode, name: XattrName::new(XATTR).unwrap() })
            }
            Wish::MakeNode { name, kind, .. } => {
                Op::MakeNode(wire::MakeNode { parent: inode, name, kind, mode: 0o640.into(), device: 0 })
            }
            Wish::Unlink { name, .. } => Op::Unlink(wire::Unlink { parent: inode, name }),
            Wish::MakeDirectory { name, home, .. } => Op::MakeDirectory {
                request: wire::MakeDirectory { parent: inode, name, mode: 0o750.into() },
                homes: vec![home],
            },
            Wish::RemoveDirectory { name, .. } => {
                Op::RemoveDirectory(wire::RemoveDirectory { parent: inode, name })
            }
            Wish::Open { .. } => Op::Open(wire::Open { inode, read: true, write: false, run: false }),
            Wish::Close { .. } => Op::Close(wire::Close { inode, modified: None, leases: false }),
            Wish::Write { offset, bytes, .. } => {
                let mode = if offset.is_some() { InlineMode::At } else { InlineMode::End };
                let (offset, bytes) = (offset.unwrap_or(0), Bytes(bytes));
                Op::WriteInline {
                    request: WriteInline { inode, mode, offset, bytes, origin: WriteOrigin::Program },
                    room: true,
                }
            }
            Wish::Promote { .. } => {
                Op::Promote { request: Promote { inode, first_page: FirstPage::Locked }, epoch: Epoch(1) }
            }
            Wish::Extend { size, .. } => Op::Extend(wire::Extend { inode, generation, size, from: 0 }),
            Wish::Truncate { size, .. } => Op::Truncate(wire::Truncate { inode, size, allocated: None }),
            Wish::SetMode { mode, .. } => Op::SetAttributes(wire::SetAttributes {
                inode,
                mode: Some(mode),
                uid: None,
                gid: None,
                accessed: None,
                modified: None,
                times: wire::TimeReason::Chosen,
            }),
        }
    }

    /// The same on the model: the node that it made or opened.
    pub fn on_model(&self, model: &mut Model) -> Result<Option<Node>> {
        match self {
            Wish::Create { parent, name, exclusive, .. } => {
                model.create(*parent, name, 0o644, *exclusive).map(|(node, _)| Some(node))
            }
            Wish::Symlink { parent, name } => model.symlink(*parent, name, b"a/b").map(Some),
            Wish::CreateUnnamed { parent } => model.create_unnamed(*parent, 0o600).map(Some),
            Wish::SetXattr { node, value } => model.set_xattr(*node, XATTR, &[*value]).map(|()| None),
            Wish::RemoveXattr { node } => model.remove_xattr(*node, XATTR).map(|()| None),
            Wish::MakeNode { parent, name, kind } => model.make_node(*parent, name, *kind, 0o640).map(Some),
            Wish::Unlink { parent, name } => model.unlink(*parent, name).map(|()| None),
            Wish::MakeDirectory { parent, name, .. } => model.mkdir(*parent, name, 0o750).map(Some),
            Wish::RemoveDirectory { parent, name } => model.rmdir(*parent, name).map(|()| None),
            Wish::Open { node } => match model.stat(*node)?.kind {
                FileKind::Symlink => Err(Error::new(ErrorKind::Loop, "a link is not opened")),
                kind if kind.is_special() => Err(Error::new(ErrorKind::Unsupported, "nor is a pipe")),
                _ => model.open(*node).map(|()| Some(*node)),
            },
            Wish::Close { node } => model.close(*node).map(|()| None),
            Wish::Write { node, offset: Some(offset), bytes } => {
                model.write(*node, *offset, bytes).map(|()| None)
            }
            Wish::Write { node, offset: None, bytes } => model.append(*node, bytes).map(|_| None),
            Wish::Promote { node } => model.extend(*node, 0).map(|()| None),
            Wish::Extend { node, size } => model.extend(*node, *size).map(|()| None),
            Wish::Truncate { node, size } => model.truncate(*node, *size).map(|()| None),
            Wish::SetMode { node, mode } => model.set_mode(*node, *mode).map(|()| None),
            Wish::Rename { parent, name, new_parent, new_name, mode } => {
                model.rename(*parent, name, *new_parent, new_name, *mode).map(|()| None)
            }
            Wish::Link { node, parent, name } => model.link(*node, *parent, name).map(|()| Some(*node)),
        }
    }
}

fn layout(base: u16, slots: u16) -> Layout {
    Layout {
        stripe_unit: 64 << 10,
        width: slots.min(2),
        base_slot: Slot(base % slots),
        stride: 1,
        copies: 1,
        created: Epoch(1),
    }
}
