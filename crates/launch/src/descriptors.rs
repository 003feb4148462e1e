//! How many descriptors this process may have open.

use ramlace_base::units::count;
use ramlace_base::{Error, ErrorKind, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A transport command has three pipes.
const OF_HOST: u64 = 3;
/// What a command has open besides: standard streams, locks, signals, the first session.
const BESIDES: u64 = 64;

/// Raises the limit as far as this user may: most systems begin with 1,024, which are too few for hundreds of hosts and
/// servers. Programs that are started from here have the raised limit, too.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, the limit is what it was.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Refuses a start that would run out of descriptors halfway, which looks as if hosts could not be reached.
pub fn check_for(hosts: usize, servers: usize) -> Result<()> {
    check(hosts as u64, servers as u64, getrlimit(Resource::Nofile).current)
}

fn check(hosts: u64, servers: u64, limit: Option<u64>) -> Result<()> {
    let wanted = OF_HOST * hosts + servers + BESIDES;
    match limit.filter(|limit| *limit < wanted) {
        None => Ok(()),
        Some(limit) => Err(Error::new(
            ErrorKind::TooMany,
            format!(
                "{} on {} take {wanted} descriptors, and this process may have {limit}: raise the limit ('ulimit -Hn', \
                 limits.conf), or start fewer",
                count(servers, "server"),
                count(hosts, "host")
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 146.2
    #[test]
    fn the_limit_of_descriptors_is_raised_to_what_is_allowed() {
        let allowed = getrlimit(Resource::Nofile).maximum;
        let low = Some(allowed.unwrap_or(u64::MAX).min(512));
        setrlimit(Resource::Nofile, Rlimit { current: low, maximum: allowed }).unwrap();
        raise_descriptor_limit();
        let raised = getrlimit(Resource::Nofile);
        assert_eq!((raised.current, raised.maximum), (allowed, allowed));
    }

    // SEMANTICS 146.2
    #[test]
    fn a_start_that_needs_more_descriptors_than_there_may_be_says_so() {
        assert!(check(256, 4096, None).is_ok());
        assert!(check(100, 100, Some(464)).is_ok());
        let error = check(256, 512, Some(1024)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooMany);
        assert!(error.message().contains("take 1344 descriptors, and this process may have 1024"), "{error}");
    }
}
