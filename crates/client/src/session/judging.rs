//! Carries out what [`crate::session::retry`] decides about a request that has no reply.

use std::sync::Arc;
use std::time::Instant;

use ramlace_base::{Epoch, Error, ErrorKind, Result};
use ramlace_wire::ClusterMap;

use crate::backoff::Backoff;
use crate::session::Session;
use crate::session::lines::{Server, Unanswered};
use crate::session::retry::{Failed, Judged, MapAsked, OnRetry, Verdict};

impl Session {
    /// Judges a request without a reply: does what makes another attempt promising, and returns what becomes
    /// of the request. `epoch` is that of the map under which the server was asked.
    pub(crate) fn judge(
        self: &Arc<Session>,
        server: &Arc<Server>,
        epoch: Epoch,
        unanswered: Unanswered,
        on_retry: OnRetry,
        deadline: Instant,
    ) -> Judged {
        let Unanswered { error, map, from_server, refused_or_silent } = unanswered;
        let failed = Failed { kind: error.kind(), from_server, refused_or_silent, brings_map: map.is_some() };
        let newest = match self.remedy(server, failed, map, deadline) {
            Ok(newest) => newest,
            Err(error) => return Judged { error, verdict: Verdict::Over },
        };
        let error = if from_server { error } else { name_server(server, &error) };
        let same_map = newest.is_some_and(|newest| newest.epoch == epoch);
        let verdict = failed.verdict(on_retry, same_map);
        tracing::debug!(target: "ramlace::client", server = server.id.0, %error, told = from_server, ?verdict, "a request failed");
        Judged { error, verdict }
    }

    /// Does what makes another attempt promising; returns the newest map, if it was asked for.
    fn remedy(
        self: &Arc<Session>,
        server: &Arc<Server>,
        failed: Failed,
        map: Option<Box<ClusterMap>>,
        deadline: Instant,
    ) -> Result<Option<Arc<ClusterMap>>> {
        let remedy = failed.remedy(Instant::now(), deadline);
        if let Some(map) = map {
            self.adopt_map(*map)?;
        }
        if remedy.drops_lines {
            server.note_answer(false);
            server.drop_idle();
        }
        if remedy.suspects {
            server.suspect();
        }
        let newest = match remedy.asks_for_map {
            None => None,
            Some(MapAsked::AllServers) => Some(self.refresh_map(deadline)?),
            Some(MapAsked::OtherServers) => Some(self.refresh_map_without(Some(server.id), deadline)?),
        };
        if remedy.confirms {
            self.confirm(server)?;
        }
        Ok(newest)
    }
}

impl Judged {
    /// Pauses, and returns when the request is to be sent again. `renew` says whether there is another
    /// permit.
    ///
    /// Errors: what the caller gets instead; that there is no time left; those of `renew`.
    pub(crate) fn before_next(
        self,
        backoff: &mut Backoff,
        renew: impl FnOnce() -> Result<bool>,
    ) -> Result<()> {
        match self.verdict {
            Verdict::Again => backoff.pause_after(self.error),
            Verdict::ByAnotherPermit => {
                if renew()? {
                    backoff.pause_after(renewed_too_late(&self.error))
                } else {
                    Err(self.error)
                }
            }
            Verdict::Outdated | Verdict::Over => Err(self.error),
        }
    }
}

/// A new permit came, and no time was left to use it: this must not be reported as a refusal.
fn renewed_too_late(refused: &Error) -> Error {
    let text =
        format!("{}, by a permit that is renewed by now; there was no time to ask again", refused.message());
    Error::new(ErrorKind::TimedOut, text)
}

/// The advice in the error of a failed call; a report of all servers leaves it out, because it is that
/// report.
pub(crate) const STATUS_ADVICE: &str = "; 'ramlace status' shows which servers answer";

/// Adds the server's number and address, and the next step, to a failure.
pub(crate) fn name_server(server: &Server, error: &Error) -> Error {
    let entry = server.entry();
    let next = match error.kind() {
        ErrorKind::HostDown | ErrorKind::TimedOut => STATUS_ADVICE,
        _ => "",
    };
    // The connection's error names its address as well.
    let address = format!("tcp:{}: ", entry.tcp);
    let why = error.message().strip_prefix(&address).unwrap_or(error.message());
    Error::new(error.kind(), format!("{} at {} does not answer: {why}{next}", server.id, entry.tcp))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn judged(verdict: Verdict) -> Judged {
        Judged { error: Error::new(ErrorKind::Denied, "refused"), verdict }
    }

    #[test]
    fn a_refused_request_goes_again_only_by_another_permit_and_in_time() {
        let refused = || judged(Verdict::ByAnotherPermit);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        refused().before_next(&mut Backoff::new(later), || Ok(true)).unwrap();
        let error = refused().before_next(&mut Backoff::new(later), || Ok(false)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        let error = refused().before_next(&mut Backoff::new(now), || Ok(true)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "there was no time, and that is no refusal");
        let down = || Err(Error::new(ErrorKind::HostDown, "the home"));
        let error = refused().before_next(&mut Backoff::new(later), down).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostDown);
        for verdict in [Verdict::Outdated, Verdict::Over] {
            let never = || unreachable!("nothing was refused");
            judged(verdict).before_next(&mut Backoff::new(later), never).unwrap_err();
        }
    }
}
