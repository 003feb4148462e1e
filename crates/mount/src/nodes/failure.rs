//! The last store into a file that could not be written back, and which descriptors have reported it.

use std::sync::atomic::{AtomicU64, Ordering};

use ramlace_base::{Error, Result};

/// The last failure, if there was one.
#[derive(Default)]
pub(crate) struct Last(Option<Box<Failure>>);

struct Failure {
    number: u64,
    error: Error,
    /// It was reported by a refresh.
    refreshed: bool,
}

/// The failures that were reported: those up to a number.
pub(crate) struct Reported(AtomicU64);

impl Reported {
    /// All up to this one.
    pub(crate) fn up_to(number: u64) -> Reported {
        Reported(AtomicU64::new(number))
    }
}

impl Last {
    pub(crate) fn note(&mut self, number: u64, error: &Error) {
        self.0 = Some(Box::new(Failure { number, error: error.clone(), refreshed: false }));
    }

    /// Fails unless the failure is among these; from then on it is.
    pub(crate) fn tell(&self, reported: &Reported) -> Result<()> {
        match &self.0 {
            Some(failure) if reported.0.fetch_max(failure.number, Ordering::AcqRel) < failure.number => {
                Err(failure.error.clone())
            }
            _ => Ok(()),
        }
    }

    /// Fails unless it was reported by a refresh.
    pub(crate) fn tell_refresh(&mut self) -> Result<()> {
        match &mut self.0 {
            Some(failure) if !failure.refreshed => {
                failure.refreshed = true;
                Err(failure.error.clone())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    pub(crate) fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}
