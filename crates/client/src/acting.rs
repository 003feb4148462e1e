//! For whom a thread asks, in a process that acts for the users of a machine.
//!
//! As a thread of Linux has a user id of its own for file systems: the thread that asks does the
//! socket work itself, so what it asks within the scope is asked for that user, and nothing else
//! is. Requests by an open file are made for nobody: the right was checked when it was opened.

use std::cell::RefCell;

use ramlace_wire::{Credentials, ForWhom, Kind};

thread_local! {
    static FOR: RefCell<Option<Credentials>> = const { RefCell::new(None) };
}

/// Does what `work` asks of a pool for this user. The pool's session must be one that may
/// ([`crate::ConnectOptions::for_users`]): others are refused.
pub fn acting_for<T>(who: Credentials, work: impl FnOnce() -> T) -> T {
    within(Some(who), work)
}

/// Does what `work` asks for no user, whatever the thread does else.
pub(crate) fn for_nobody<T>(work: impl FnOnce() -> T) -> T {
    within(None, work)
}

/// For whom this thread sends a request of this kind. Bytes, and what goes on in an open file, are asked
/// for nobody: the right was checked when it was opened.
pub(crate) fn current_for(kind: Kind) -> Option<Credentials> {
    match kind.row().for_whom {
        ForWhom::User | ForWhom::OpenFileOrUser => current(),
        ForWhom::Itself | ForWhom::OpenFile => None,
    }
}

fn current() -> Option<Credentials> {
    FOR.with_borrow(Clone::clone)
}

fn within<T>(who: Option<Credentials>, work: impl FnOnce() -> T) -> T {
    /// Also when the work panics.
    struct Back(Option<Credentials>);
    impl Drop for Back {
        fn drop(&mut self) {
            FOR.set(self.0.take());
        }
    }
    let _back = Back(FOR.replace(who));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_with_what_was_before_it() {
        let user = |uid| Credentials::new(uid, 1);
        acting_for(user(1), || {
            acting_for(user(2), || assert_eq!(current(), Some(user(2))));
            for_nobody(|| assert_eq!(current(), None));
            assert!(std::panic::catch_unwind(|| acting_for(user(3), || panic!("in a scope"))).is_err());
            assert_eq!(current(), Some(user(1)));
        });
        assert_eq!(current(), None);
    }
}
