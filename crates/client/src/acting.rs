//! On whose behalf a thread sends requests, in a process that acts for the users of a machine.
//!
//! As with the per-thread user id for file systems in Linux: the calling thread does the socket work itself,
//! so exactly what it asks within the scope is asked for that user. Requests on an open file are made for no
//! user: the right was checked when it was opened.

use std::cell::RefCell;

use ramlace_wire::{Credentials, ForWhom, Kind};

thread_local! {
    static FOR: RefCell<Option<Credentials>> = const { RefCell::new(None) };
}

/// Does what `work` asks of a pool for this user. The pool's session must be allowed to act for users
/// ([`crate::ConnectOptions::for_users`]); other sessions are refused.
pub fn acting_for<T>(who: Credentials, work: impl FnOnce() -> T) -> T {
    within(Some(who), work)
}

/// Does what `work` asks for no user, whatever user the thread otherwise acts for.
pub(crate) fn for_nobody<T>(work: impl FnOnce() -> T) -> T {
    within(None, work)
}

/// For which user this thread sends a request of this kind. Requests for bytes, and others on an open file,
/// are made for no user: the right was checked when it was opened.
pub(crate) fn current_for(kind: Kind) -> Option<Credentials> {
    match kind.row().for_whom {
        ForWhom::User | ForWhom::OpenFileOrUser => current(),
        ForWhom::Itself | ForWhom::OpenFile => None,
    }
}

/// Whether this thread acts for a user other than the super-user.
pub(crate) fn is_for_a_user() -> bool {
    FOR.with_borrow(|who| who.as_ref().is_some_and(|who| who.uid != 0))
}

fn current() -> Option<Credentials> {
    FOR.with_borrow(Clone::clone)
}

fn within<T>(who: Option<Credentials>, work: impl FnOnce() -> T) -> T {
    /// Restores the user, also when the work panics.
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
