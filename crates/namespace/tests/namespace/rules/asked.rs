//! Which messages ask a slot to change, and which slot that is.

use ramlace_base::{ErrorKind, InodeId, Slot};
use ramlace_namespace::Op;
use ramlace_wire::namespace::{CancelChange, Close, Lookup};
use ramlace_wire::{Kind, Request, Shows, encode_body};

#[test]
fn every_change_that_a_client_may_ask_of_a_slot_is_a_command() {
    // Bytes of lanes are changed elsewhere.
    let of_lanes = |kind: &Kind| kind.row().shows == Shows::Bytes || *kind == Kind::ExtendChunk;
    for kind in Kind::ALL.iter().filter(|kind| kind.row().changes && !of_lanes(kind)) {
        let refused = Op::asked(*kind, &[], Slot(1)).unwrap_err();
        assert!(refused.message().contains("makes no sense"), "{refused}");
    }
    let refused = Op::asked(Lookup::KIND, &[], Slot(1)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Protocol);
    assert!(refused.message().contains("nothing that a slot is asked"), "{refused}");
}

#[test]
fn a_change_goes_to_the_slot_of_its_inode_or_to_the_one_that_was_named() {
    let close = Close { inode: InodeId::new(Slot(7), 9), modified: None, leases: false };
    assert_eq!(Op::asked(Close::KIND, &encode_body(&close), Slot(1)), Ok((Slot(7), Op::Close(close))));
    let cancel = CancelChange { sequence: ramlace_base::Sequence(3) };
    assert_eq!(
        Op::asked(CancelChange::KIND, &encode_body(&cancel), Slot(1)),
        Ok((Slot(1), Op::CancelChange(cancel)))
    );
}
