//! Decides about a request that has no reply: whether it is sent again, when, what is done before, and what
//! its caller gets otherwise.
//!
//! There is one rule for calls by slot and for the pieces of large transfers; [`verdict_of_one`] is the rule
//! for queries to one server. The rules read no clock and send nothing: [`crate::session::judging`] carries
//! them out.

use std::time::Instant;

use ramlace_base::{Error, ErrorKind, Redirect};

use crate::backoff::Backoff;

/// What to do when a server answers Retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRetry {
    /// Send it again after a pause.
    Repeat,
    /// Return it to the caller, whose knowledge of the file is outdated.
    Tell,
}

/// Why a request has no reply, as far as the rules need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The server has answered with it; else the reply was lost.
    pub from_server: bool,
    /// The server refuses connections, or shows no sign of life.
    pub refused_or_silent: bool,
    /// The error came with a newer map.
    pub brings_map: bool,
}

/// What makes another attempt promising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remedy {
    /// Close the server's idle connections, which belong to its last incarnation, and count it as failing.
    pub drops_lines: bool,
    /// The server has to show a sign of life before any other request.
    pub suspects: bool,
    /// Ask for a newer map: the slot may have moved to another server, or its server may have come back at
    /// another address.
    pub asks_for_map: Option<MapAsked>,
    /// Ask the server whether it meant the session.
    pub confirms: bool,
}

/// Which servers are asked for a newer map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAsked {
    /// Every server.
    AllServers,
    /// All except the server that failed, which would not answer.
    OtherServers,
}

impl Failed {
    /// What is done before the verdict.
    pub fn remedy(self, now: Instant, deadline: Instant) -> Remedy {
        let lost = !self.from_server;
        let asks_for_map = match self.kind {
            ErrorKind::Redirect(Redirect::Moved) if !self.brings_map => Some(MapAsked::AllServers),
            ErrorKind::HostDown if lost && self.refused_or_silent => Some(MapAsked::OtherServers),
            ErrorKind::HostDown if lost => Some(MapAsked::AllServers),
            _ => None,
        };
        Remedy {
            drops_lines: lost,
            suspects: lost && (self.kind == ErrorKind::TimedOut || Backoff::is_over(now, deadline)),
            asks_for_map,
            confirms: self.from_server && self.kind == ErrorKind::Stale,
        }
    }

    /// What becomes of the request then; `same_map`: there was no newer one.
    pub fn verdict(self, on_retry: OnRetry, same_map: bool) -> Verdict {
        match self.kind {
            ErrorKind::Retry if on_retry == OnRetry::Tell => Verdict::Outdated,
            ErrorKind::HostDown if self.refused_or_silent && !self.from_server && same_map => Verdict::Over,
            ErrorKind::HostDown | ErrorKind::Retry | ErrorKind::Redirect(Redirect::Moved) => Verdict::Again,
            // `Denied` in the handshake, which counts as a lost reply, is not about a permit.
            ErrorKind::Denied if self.from_server => Verdict::ByAnotherPermit,
            _ => Verdict::Over,
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is sent again after a pause.
    Again,
    /// It is sent again, with the same number, if there is another permit than the one that was refused: the
    /// pool's secret has changed.
    ByAnotherPermit,
    /// The caller's knowledge is outdated, and it has to ask the file's home.
    Outdated,
    /// The caller gets the error.
    Over,
}

impl Verdict {
    /// Whether the rest of the same operation is not begun any more: it would fail as well, or has to be sent
    /// in another way.
    pub fn stops_others(self) -> bool {
        matches!(self, Verdict::Over | Verdict::ByAnotherPermit)
    }
}

/// A failure, after everything possible was done about it.
#[derive(Clone, Debug)]
pub struct Judged {
    pub error: Error,
    pub verdict: Verdict,
}

impl Judged {
    /// The request was not sent, and may be.
    pub fn not_sent() -> Judged {
        Judged { error: Error::new(ErrorKind::HostDown, "it was not sent"), verdict: Verdict::Again }
    }

    /// For several requests that were sent together: the failure that decides about all that are not done.
    pub fn deciding<'a>(all: impl Iterator<Item = &'a Judged>) -> Option<&'a Judged> {
        all.min_by_key(|judged| match judged.verdict {
            Verdict::Outdated => 0,
            Verdict::Over | Verdict::ByAnotherPermit => 1,
            Verdict::Again => 2,
        })
    }
}

/// What becomes of a query to one server, which no other could answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictOfOne {
    AfterPause,
    AtOnce,
    Over,
}

/// Its idle connections may all be of its last incarnation: so only the second failure counts. `silences`:
/// the number of failures before this one.
pub fn verdict_of_one(kind: ErrorKind, silences: u32) -> VerdictOfOne {
    match kind {
        ErrorKind::Retry => VerdictOfOne::AfterPause,
        ErrorKind::HostDown if silences == 0 => VerdictOfOne::AtOnce,
        _ => VerdictOfOne::Over,
    }
}

/// Whether the home may not have received it.
pub fn is_unacknowledged(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::HostDown | ErrorKind::TimedOut | ErrorKind::Retry | ErrorKind::Redirect(Redirect::Moved)
    )
}

/// Whether the home has received it, and has done nothing because it has no room for the record or the answer now.
pub fn lacks_room(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::TooMany)
}

/// Whether a change with this outcome may still be done, and is to be abandoned; `lost`: a reply to it was
/// lost.
pub fn is_in_doubt(error: &Error, lost: bool) -> bool {
    error.kind() == ErrorKind::TimedOut || lost && is_unacknowledged(error)
}

/// Whether a change may have been done, or may still be done, although its caller gets an error.
pub fn is_unanswered(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::HostDown | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MOVED: ErrorKind = ErrorKind::Redirect(Redirect::Moved);

    fn from_server(kind: ErrorKind) -> Failed {
        Failed { kind, from_server: true, refused_or_silent: false, brings_map: false }
    }

    fn lost(kind: ErrorKind) -> Failed {
        Failed { from_server: false, ..from_server(kind) }
    }

    fn with_time(failed: Failed, millis: u64) -> Remedy {
        let now = Instant::now();
        failed.remedy(now, now + Duration::from_millis(millis))
    }

    fn judged(verdict: Verdict, text: &str) -> Judged {
        Judged { error: Error::new(ErrorKind::Denied, text), verdict }
    }

    #[test]
    fn a_server_that_answers_keeps_its_connections_whatever_it_says() {
        for kind in [ErrorKind::HostDown, ErrorKind::TimedOut, ErrorKind::Retry, ErrorKind::NoSpace] {
            assert_eq!(with_time(from_server(kind), 0), Remedy::default(), "{kind:?}");
        }
    }

    #[test]
    fn a_lost_answer_drops_connections_and_asks_who_has_the_slot() {
        let remedy = with_time(lost(ErrorKind::HostDown), 10_000);
        let expected =
            Remedy { drops_lines: true, asks_for_map: Some(MapAsked::AllServers), ..Remedy::default() };
        assert_eq!(remedy, expected);
        let silent = Failed { refused_or_silent: true, ..lost(ErrorKind::HostDown) };
        assert_eq!(with_time(silent, 10_000).asks_for_map, Some(MapAsked::OtherServers));
        assert_eq!(with_time(lost(ErrorKind::Protocol), 10_000).asks_for_map, None);
    }

    #[test]
    fn a_server_that_used_up_a_calls_time_has_to_show_a_sign_of_life() {
        assert!(with_time(lost(ErrorKind::TimedOut), 10_000).suspects);
        assert!(with_time(lost(ErrorKind::HostDown), 0).suspects);
        assert!(!with_time(lost(ErrorKind::HostDown), 10_000).suspects);
    }

    #[test]
    fn a_slot_that_moved_is_looked_for_unless_its_map_came_along() {
        assert_eq!(with_time(from_server(MOVED), 0).asks_for_map, Some(MapAsked::AllServers));
        assert_eq!(with_time(Failed { brings_map: true, ..from_server(MOVED) }, 0), Remedy::default());
        let with_map = Failed { brings_map: true, ..lost(ErrorKind::HostDown) };
        assert_eq!(
            with_time(with_map, 10_000).asks_for_map,
            Some(MapAsked::AllServers),
            "it may be older than who has the slot now"
        );
    }

    #[test]
    fn only_a_server_that_says_stale_is_asked_whether_it_means_the_session() {
        assert!(with_time(from_server(ErrorKind::Stale), 0).confirms);
        assert!(!with_time(lost(ErrorKind::Stale), 0).confirms);
    }

    #[test]
    fn what_may_pass_is_sent_again_and_what_a_server_says_for_good_is_told() {
        for kind in [ErrorKind::HostDown, ErrorKind::Retry, MOVED] {
            assert_eq!(from_server(kind).verdict(OnRetry::Repeat, true), Verdict::Again, "{kind:?}");
            assert_eq!(lost(kind).verdict(OnRetry::Repeat, true), Verdict::Again, "{kind:?}");
        }
        for kind in [ErrorKind::TimedOut, ErrorKind::Stale, ErrorKind::NoSpace, ErrorKind::Protocol] {
            assert_eq!(from_server(kind).verdict(OnRetry::Repeat, false), Verdict::Over, "{kind:?}");
        }
    }

    #[test]
    fn retry_goes_to_a_caller_whose_belief_it_ends() {
        assert_eq!(from_server(ErrorKind::Retry).verdict(OnRetry::Tell, true), Verdict::Outdated);
        assert_eq!(lost(ErrorKind::Retry).verdict(OnRetry::Tell, true), Verdict::Outdated);
        assert_eq!(from_server(MOVED).verdict(OnRetry::Tell, true), Verdict::Again);
    }

    #[test]
    fn a_lost_retry_drops_connections_whoever_hears_of_it() {
        for on_retry in [OnRetry::Repeat, OnRetry::Tell] {
            let verdict = lost(ErrorKind::Retry).verdict(on_retry, true);
            assert_eq!(verdict == Verdict::Again, on_retry == OnRetry::Repeat);
        }
        let expected = Remedy { drops_lines: true, ..Remedy::default() };
        assert_eq!(with_time(lost(ErrorKind::Retry), 10_000), expected);
    }

    #[test]
    fn a_refused_greeting_is_no_refused_permit() {
        for on_retry in [OnRetry::Repeat, OnRetry::Tell] {
            assert_eq!(from_server(ErrorKind::Denied).verdict(on_retry, true), Verdict::ByAnotherPermit);
            assert_eq!(lost(ErrorKind::Denied).verdict(on_retry, true), Verdict::Over);
        }
        assert_eq!(with_time(from_server(ErrorKind::Denied), 0), Remedy::default());
        let expected = Remedy { drops_lines: true, ..Remedy::default() };
        assert_eq!(with_time(lost(ErrorKind::Denied), 10_000), expected);
    }

    #[test]
    fn what_belongs_to_an_operation_is_not_begun_when_its_verdict_is_for_all() {
        assert!(Verdict::Over.stops_others() && Verdict::ByAnotherPermit.stops_others());
        assert!(!Verdict::Again.stops_others() && !Verdict::Outdated.stops_others());
    }

    #[test]
    fn nobody_waits_for_a_silent_server_that_still_has_the_slot() {
        let silent = Failed { refused_or_silent: true, ..lost(ErrorKind::HostDown) };
        assert_eq!(silent.verdict(OnRetry::Repeat, true), Verdict::Over);
        assert_eq!(silent.verdict(OnRetry::Repeat, false), Verdict::Again);
    }

    #[test]
    fn of_several_failures_the_first_of_the_gravest_decides() {
        let all = [
            judged(Verdict::Again, "lost"),
            judged(Verdict::ByAnotherPermit, "refused"),
            judged(Verdict::Over, "full"),
        ];
        let text = |all: &[Judged]| Judged::deciding(all.iter()).unwrap().error.message().to_owned();
        assert_eq!(text(&all), "refused");
        assert_eq!(text(&all[..1]), "lost");
        let outdated = [&all[..], &[judged(Verdict::Outdated, "cut")]].concat();
        assert_eq!(text(&outdated), "cut");
        assert!(Judged::deciding([].iter()).is_none());
    }

    #[test]
    fn one_server_is_asked_anew_once_when_it_is_silent() {
        assert_eq!(verdict_of_one(ErrorKind::HostDown, 0), VerdictOfOne::AtOnce);
        assert_eq!(verdict_of_one(ErrorKind::HostDown, 1), VerdictOfOne::Over);
        assert_eq!(verdict_of_one(ErrorKind::Retry, 1), VerdictOfOne::AfterPause);
        assert_eq!(verdict_of_one(ErrorKind::TimedOut, 0), VerdictOfOne::Over);
    }
}
