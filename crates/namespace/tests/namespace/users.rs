//! Several users in one slot: each may do what the model says, whatever the owners, the groups and the modes.

use proptest::prelude::*;
use ramlace_base::{
    Epoch, ErrorKind, Generation, InodeId, Name, Result, Sequence, SessionId, Slot, Timestamp,
};
use ramlace_model::{Owned, User};
use ramlace_namespace::{Command, Effect, Op, Origin, Reply, SlotState};
use ramlace_wire::namespace as wire;
use ramlace_wire::{Credentials, Groups, Layout};

const ROOT_USER: Credentials = Credentials::new(0, 0);

struct Place {
    state: SlotState,
    sequence: u64,
    on_behalf: bool,
    directory: InodeId,
    file: InodeId,
}

fn name() -> Name {
    Name::new("f").unwrap()
}

fn credentials(user: &User) -> Credentials {
    Credentials { uid: user.uid, gid: user.gid, groups: Groups::new(user.groups.clone()).unwrap() }
}

impl Place {
    /// A directory and a file in it, as wished, which no session has open.
    fn new(directory: Owned, file: Owned) -> Place {
        let mut state = SlotState::new(Slot(0), 16, Epoch(1), 7);
        state.install_root(ROOT_USER.owner(), Timestamp { nanos: 1 });
        let mut place =
            Place { state, sequence: 0, on_behalf: false, directory: InodeId::ROOT, file: InodeId::ROOT };
        let made = place.ask(
            &ROOT_USER,
            Op::MakeDirectory {
                request: wire::MakeDirectory { parent: InodeId::ROOT, name: name(), mode: 0.into() },
                homes: vec![Slot(0)],
            },
        );
        let Ok(Reply::Attributes(made)) = made else { panic!("{made:?}") };
        place.directory = made.inode;
        let layout = Layout {
            stripe_unit: 1 << 16,
            width: 1,
            base_slot: Slot(1),
            stride: 1,
            copies: 1,
            created: Epoch(1),
        };
        let request = wire::Create {
            parent: place.directory,
            name: name(),
            mode: 0.into(),
            exclusive: true,
            read: true,
            write: false,
            layout: Some(layout),
            wish: wire::LayoutWish::default(),
            named: Vec::new(),
        };
        let opened = place.ask(&ROOT_USER, Op::Create(request));
        let Ok(Reply::Opened(opened)) = opened else { panic!("{opened:?}") };
        place.file = opened.info.attributes.inode;
        place
            .ask(&ROOT_USER, Op::Close(wire::Close { inode: place.file, modified: None, leases: false }))
            .unwrap();
        place.own(place.directory, directory);
        place.own(place.file, file);
        place
    }

    fn own(&mut self, inode: InodeId, owned: Owned) {
        let Owned { uid, gid, mode } = owned;
        let request = wire::SetAttributes {
            inode,
            mode: Some(mode),
            uid: Some(uid),
            gid: Some(gid),
            accessed: None,
            modified: None,
            times: wire::TimeReason::Chosen,
        };
        self.ask(&ROOT_USER, Op::SetAttributes(request)).unwrap();
        assert_eq!(self.owned(inode), owned);
    }

    fn owned(&self, inode: InodeId) -> Owned {
        let attributes = self.state.query(&ROOT_USER, &wire::GetAttributes { inode }).unwrap().attributes;
        Owned { uid: attributes.uid, gid: attributes.gid, mode: attributes.mode }
    }

    fn ask(&mut self, who: &Credentials, op: Op) -> Result<Reply> {
        self.sequence += 1;
        let command = Command {
            now: Timestamp { nanos: self.sequence as i64 },
            origin: Origin::Client {
                session: SessionId([1; 16]),
                sequence: Sequence(self.sequence),
                acknowledged_below: Sequence(self.sequence),
                who: who.clone(),
                on_behalf: self.on_behalf,
            },
            op,
        };
        let effects = self.state.apply(&command);
        let reply = effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { outcome, .. } => Some(outcome),
            _ => None,
        });
        reply.expect("one slot answers at once")
    }
}

fn outcome_of(outcome: Result<Reply>) -> std::result::Result<(), ErrorKind> {
    outcome.map(drop).map_err(|error| error.kind())
}

fn expect(allowed: bool, otherwise: ErrorKind) -> std::result::Result<(), ErrorKind> {
    if allowed { Ok(()) } else { Err(otherwise) }
}

fn ids() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0..6_u32, 1 => Just(u32::MAX - 1)]
}

prop_compose! {
    fn user()(uid in ids(), gid in ids(), groups in prop::collection::vec(ids(), 0..4)) -> User {
        User { uid, gid, groups }
    }
}

prop_compose! {
    fn owned()(uid in ids(), gid in ids(), mode in 0..0o2000_u16) -> Owned {
        Owned { uid, gid, mode }
    }
}

fn mode(inode: InodeId, mode: u16) -> Op {
    Op::SetAttributes(wire::SetAttributes { mode: Some(mode), ..wire::SetAttributes::nothing(inode) })
}

fn wrote(inode: InodeId) -> wire::SetAttributes {
    let modified = Some(Timestamp { nanos: 1 });
    wire::SetAttributes { modified, times: wire::TimeReason::Wrote, ..wire::SetAttributes::nothing(inode) }
}

#[test]
fn a_writer_takes_the_set_id_bits_away_and_nothing_else() {
    let owned = |mode| Owned { uid: 1, gid: 2, mode };
    let (writer, reader) = (Credentials::new(9, 2), Credentials::new(9, 9));
    let mut place = Place::new(owned(0o777), owned(0o6775));
    let file = place.file;
    for (who, wanted) in
        [(&writer, 0o4775), (&writer, 0o2775), (&writer, 0o775), (&writer, 0), (&reader, 0o775)]
    {
        assert_eq!(
            outcome_of(place.ask(who, mode(file, wanted))),
            Err(ErrorKind::NotPermitted),
            "{wanted:o}"
        );
    }
    assert_eq!(outcome_of(place.ask(&reader, Op::SetAttributes(wrote(file)))), Err(ErrorKind::Denied));
    place.ask(&writer, Op::SetAttributes(wrote(file))).unwrap();
    assert_eq!(place.owned(file), owned(0o775));
}

#[test]
fn what_a_hosts_session_has_open_gives_its_users_no_right() {
    let owned = |mode| Owned { uid: 1, gid: 1, mode };
    let mut place = Place::new(owned(0o777), owned(0o600));
    let (owner, other) = (Credentials::new(1, 1), Credentials::new(2, 2));
    let cut = |inode| Op::Truncate(wire::Truncate { inode, size: 5, allocated: None });
    let times = wrote(place.file);
    place.on_behalf = true;
    place
        .ask(&owner, Op::Open(wire::Open { inode: place.file, read: true, write: true, run: false }))
        .unwrap();
    for op in [cut(place.file), Op::SetAttributes(times)] {
        assert_eq!(outcome_of(place.ask(&other, op.clone())), Err(ErrorKind::Denied));
        // By the open file, for any caller: the host's kernel vouches for no user.
        place.on_behalf = false;
        place.ask(&Credentials::NOBODY, op).unwrap();
        place.on_behalf = true;
    }
}

// SEMANTICS 50.2
#[test]
fn a_program_is_opened_to_run_for_whom_its_mode_lets_run_it_and_a_kernel_vouches() {
    let (owner, member, other) = (Credentials::new(1, 1), Credentials::new(2, 1), Credentials::new(3, 3));
    for (mode, on_behalf, may) in [
        (0o111, true, [true, true, true]),
        (0o010, true, [false, true, false]),
        (0o666, true, [false, false, false]),
        // A caller that acts for itself would have the bytes.
        (0o111, false, [true, false, false]),
        (0o444, false, [false, true, true]),
    ] {
        let mut place = Place::new(Owned { uid: 1, gid: 1, mode: 0o777 }, Owned { uid: 1, gid: 1, mode });
        place.on_behalf = on_behalf;
        for (who, may) in [&owner, &member, &other].into_iter().zip(may) {
            let open = wire::Open { inode: place.file, read: false, write: false, run: true };
            let opened = outcome_of(place.ask(who, Op::Open(open)));
            assert_eq!(opened, expect(may, ErrorKind::Denied), "user {} and mode {mode:o}", who.uid);
            let read = wire::Open { read: true, ..open };
            assert_eq!(outcome_of(place.ask(who, Op::Open(read))).is_ok(), may && mode & 0o444 == 0o444);
        }
    }
    let mut place = Place::new(Owned { uid: 1, gid: 1, mode: 0o777 }, Owned { uid: 1, gid: 1, mode: 0o777 });
    let directory = wire::Open { inode: place.directory, read: false, write: false, run: true };
    assert_eq!(outcome_of(place.ask(&owner, Op::Open(directory))), Err(ErrorKind::IsDirectory));
}

// SEMANTICS 57.2
#[test]
fn who_writes_by_a_hosts_open_file_takes_the_set_id_bit_of_a_group_that_is_not_his() {
    let (member, other) = (Credentials::new(2, 1), Credentials::new(3, 3));
    for (who, mode, left) in [
        (&member, 0o6600, 0o2600),
        (&member, 0o6610, 0o610),
        (&other, 0o6600, 0o600),
        (&other, 0o2600, 0o600),
        (&ROOT_USER, 0o6600, 0o2600),
    ] {
        let mut place = Place::new(Owned { uid: 1, gid: 1, mode: 0o777 }, Owned { uid: 1, gid: 1, mode });
        let drop_bits =
            wire::SetAttributes { times: wire::TimeReason::WroteAndDropsSetId, ..wrote(place.file) };
        place.on_behalf = true;
        if who.uid != 0 {
            // No session of this host has it open.
            let refused = outcome_of(place.ask(who, Op::SetAttributes(drop_bits)));
            assert_eq!(refused, Err(ErrorKind::Denied));
        }
        let open = wire::Open { inode: place.file, read: false, write: true, run: false };
        place.ask(&ROOT_USER, Op::Open(open)).unwrap();
        place.ask(who, Op::SetAttributes(drop_bits)).unwrap();
        assert_eq!(place.owned(place.file).mode, left, "user {} and mode {mode:o}", who.uid);
    }
}

proptest! {
    // SEMANTICS 49.2
    #[test]
    fn every_class_of_users_has_its_rights_and_no_more(user in user(), directory in owned(), file in owned()) {
        let mut place = Place::new(directory, file);
        let who = credentials(&user);
        let look = wire::Lookup { parent: place.directory, name: name() };
        let list = wire::ReadDirectory { inode: place.directory, after: 0, entries_max: 9 };
        prop_assert_eq!(place.state.query(&who, &look).is_ok(), user.has(1, directory));
        prop_assert_eq!(place.state.query(&who, &list).is_ok(), user.has(4, directory));
        for (read, write) in [(true, false), (false, true), (true, true)] {
            let rights = if read { 4 } else { 0 } + if write { 2 } else { 0 };
            let opened = place.ask(&who, Op::Open(wire::Open { inode: place.file, read, write, run: false }));
            prop_assert_eq!(outcome_of(opened), expect(user.has(rights, file), ErrorKind::Denied));
            if user.has(rights, file) {
                place.ask(&who, Op::Close(wire::Close { inode: place.file, modified: None, leases: false })).unwrap();
            }
        }
        let cut = Op::Truncate(wire::Truncate { inode: place.file, size: 0, allocated: None });
        prop_assert_eq!(outcome_of(place.ask(&who, cut)), expect(user.has(2, file), ErrorKind::Denied));
        let longer = wire::Extend { inode: place.file, generation: Generation::FIRST, size: 0, from: 0 };
        let longer = outcome_of(place.ask(&who, Op::Extend(longer)));
        prop_assert_eq!(longer == Err(ErrorKind::Denied), !user.has(2, file));
    }

    #[test]
    fn modes_owners_and_groups_change_for_whom_they_may(
        user in user(), directory in owned(), file in owned(), uid in ids(), gid in ids(), mode in 0..0o10000_u16,
    ) {
        let mut place = Place::new(directory, file);
        let who = credentials(&user);
        let nothing = wire::SetAttributes {
            inode: place.file, mode: None, uid: None, gid: None, accessed: None, modified: None,
            times: wire::TimeReason::Chosen,
        };
        let gave = place.ask(&who, Op::SetAttributes(wire::SetAttributes {
            uid: Some(uid), gid: Some(gid), ..nothing
        }));
        prop_assert_eq!(outcome_of(gave), expect(user.may_give(file, uid, gid), ErrorKind::NotPermitted));
        let now = place.owned(place.file);
        let given = user.may_give(file, uid, gid);
        prop_assert_eq!((now.uid, now.gid), if given { (uid, gid) } else { (file.uid, file.gid) });
        let changed = place.ask(&who, Op::SetAttributes(wire::SetAttributes { mode: Some(mode), ..nothing }));
        prop_assert_eq!(outcome_of(changed), expect(user.may_change(now), ErrorKind::NotPermitted));
        let after = place.owned(place.file).mode;
        if user.may_change(now) {
            let kept = user.uid == 0 || user.is_in(now.gid);
            prop_assert_eq!(after, if kept { mode } else { mode & !0o2000 });
        } else {
            prop_assert_eq!(after, now.mode);
        }
    }

    // SEMANTICS 49.2
    #[test]
    fn entries_go_for_whom_the_directory_allows(user in user(), directory in owned(), file in owned()) {
        let mut place = Place::new(directory, file);
        let who = credentials(&user);
        let outcome = if user.has(3, directory) {
            expect(user.may_take(file, directory), ErrorKind::NotPermitted)
        } else {
            Err(ErrorKind::Denied)
        };
        let (parent, new_name) = (place.directory, Name::new("g").unwrap());
        let renamed = place.ask(&who, Op::Rename(Box::new(wire::Rename {
            parent, name: name(), new_parent: parent, new_slot: parent.slot(), new_name: new_name.clone(),
            mode: wire::RenameMode::Replace,
        })));
        prop_assert_eq!(outcome_of(renamed), outcome);
        let name = if outcome.is_ok() { new_name } else { name() };
        prop_assert_eq!(outcome_of(place.ask(&who, Op::Unlink(wire::Unlink { parent, name }))), outcome);
    }

    #[test]
    fn what_is_made_belongs_to_its_maker(user in user(), directory in owned(), set_gid in any::<bool>()) {
        let directory = Owned { mode: directory.mode | if set_gid { 0o2000 } else { 0 }, ..directory };
        let mut place = Place::new(directory, directory);
        let who = credentials(&user);
        let made = place.ask(&who, Op::MakeDirectory {
            request: wire::MakeDirectory { parent: place.directory, name: Name::new("d").unwrap(), mode: 0o700.into() },
            homes: vec![Slot(0)],
        });
        match made {
            Ok(Reply::Attributes(made)) => {
                prop_assert!(user.has(3, directory));
                prop_assert_eq!(made.uid, user.uid);
                prop_assert_eq!(made.gid, if set_gid { directory.gid } else { user.gid });
                prop_assert_eq!(made.mode, if set_gid { 0o2700 } else { 0o700 });
            }
            other => {
                prop_assert!(!user.has(3, directory));
                prop_assert_eq!(outcome_of(other), Err(ErrorKind::Denied));
            }
        }
    }
}
