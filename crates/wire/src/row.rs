//! What is to be known of a message before its body is read: one row each, in [`crate::Kind`]'s table. Rights, the gate for
//! answers, what clients send before it, how long they wait for it, counters and the tables of `docs/WIRE.md` follow from it.

/// Which callers may ask it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Any caller that has proved a key, before it has a session, too.
    Anyone,
    /// The session of a client, of a host or of another server.
    Session,
    /// The pool's owner: no session of a host.
    Owner,
    /// Another server.
    Peer,
}

/// For which user the session of a host asks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForWhom {
    /// As itself.
    Itself,
    /// For one of its users, named in front of the body, or for no user.
    User,
    /// By a file that it has open: the rights were checked when it was opened.
    OpenFile,
    /// By a file that it has open, or for one of its users.
    OpenFileOrUser,
}

/// What its answer shows of what others may cache by leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Names and attributes.
    Names,
    /// Bytes of lanes: nothing that a holder of a lease from before the server's restart may cache.
    Bytes,
    /// Nothing that a lease is on; most are part of what another server does, whose answer will wait.
    Nothing,
}

/// A message's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which callers may ask it.
    pub asker: Asker,
    /// For which user the session of a host asks it.
    pub for_whom: ForWhom,
    /// What its answer shows.
    pub shows: Shows,
    /// It changes something: it has a number in its session, and is done once.
    pub changes: bool,
    /// It changes no directory and makes no inode: what is known of directories stays true.
    pub of_file: bool,
    /// It may come among many changes of one slot ([`crate::delegation::ChangeMany`]).
    pub among_many: bool,
    /// It is about one entry of a directory, and may go by the path of that directory ([`crate::flags::BY_PATH`]).
    pub by_path: bool,
    /// Bulk bytes follow its body.
    pub carries_data: bool,
    /// A descriptor may travel with its answer.
    pub brings_descriptor: bool,
    /// Its answer is more than a body, and it watches its deadline itself.
    pub own_deadline: bool,
    /// Its answer waits for others whose kernels have the bytes: it is waited for as long as its server lives.
    pub waits_for_holders: bool,
    /// It is asked of a file's lanes, or of its home while that has the bytes.
    pub or_of_home: bool,
    /// Its answer shows something of several slots of the server that is asked.
    pub of_many_slots: bool,
    /// A lane asks it of the home: it is answered whichever session the slot is delegated to.
    pub by_lane: bool,
}

/// The rows of messages begin with one of these.
pub(crate) const ANYONE: Row = Row {
    asker: Asker::Anyone,
    for_whom: ForWhom::Itself,
    shows: Shows::Names,
    changes: false,
    of_file: false,
    among_many: false,
    by_path: false,
    carries_data: false,
    brings_descriptor: false,
    own_deadline: false,
    waits_for_holders: false,
    or_of_home: false,
    of_many_slots: false,
    by_lane: false,
};
pub(crate) const SESSION: Row = Row { asker: Asker::Session, ..ANYONE };
pub(crate) const OWNER: Row = Row { asker: Asker::Owner, ..ANYONE };
pub(crate) const PEER: Row = Row { asker: Asker::Peer, shows: Shows::Nothing, ..ANYONE };
/// The namespace.
pub(crate) const USER: Row = Row { for_whom: ForWhom::User, ..SESSION };
/// The namespace's bytes, sizes and the end of an open file.
pub(crate) const OPEN_FILE: Row = Row { for_whom: ForWhom::OpenFile, ..SESSION };
/// Bytes of lanes.
pub(crate) const LANE: Row = Row { shows: Shows::Bytes, ..SESSION };

impl Row {
    pub(crate) const fn or_by_open_file(self) -> Row {
        Row { for_whom: ForWhom::OpenFileOrUser, ..self }
    }

    pub(crate) const fn changes(self) -> Row {
        Row { changes: true, ..self }
    }

    /// A change of a file alone.
    pub(crate) const fn changes_file(self) -> Row {
        Row { changes: true, of_file: true, ..self }
    }

    pub(crate) const fn among_many(self) -> Row {
        Row { among_many: true, ..self }
    }

    pub(crate) const fn waits_for_holders(self) -> Row {
        Row { waits_for_holders: true, ..self }
    }

    pub(crate) const fn or_of_home(self) -> Row {
        Row { or_of_home: true, ..self }
    }

    pub(crate) const fn of_many_slots(self) -> Row {
        Row { of_many_slots: true, ..self }
    }

    pub(crate) const fn by_lane(self) -> Row {
        Row { by_lane: true, ..self }
    }

    pub(crate) const fn by_path(self) -> Row {
        Row { by_path: true, ..self }
    }

    pub(crate) const fn shows(self, shows: Shows) -> Row {
        Row { shows, ..self }
    }

    pub(crate) const fn brings_descriptor(self) -> Row {
        Row { brings_descriptor: true, ..self }
    }

    pub(crate) const fn carries_data(self) -> Row {
        Row { carries_data: true, ..self }
    }

    pub(crate) const fn own_deadline(self) -> Row {
        Row { own_deadline: true, ..self }
    }

    /// Whether the session of a host may ask it for one of its users.
    #[must_use]
    pub fn may_be_for_user(self) -> bool {
        // By an open file it may be said, too: then what the session has open gives that user no right.
        self.for_whom != ForWhom::Itself
    }

    /// Whether the session of a host may ask it by a file that it has open.
    #[must_use]
    pub fn may_be_by_open_file(self) -> bool {
        matches!(self.for_whom, ForWhom::OpenFile | ForWhom::OpenFileOrUser)
    }
}
