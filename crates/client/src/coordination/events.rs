//! Events that servers report to waiting threads: see [`crate::listening`].

use ramlace_wire::locks::Event;

use crate::client::Client;
use crate::coordination::parked::Wake;

impl Client {
    /// Wakes the threads that wait for these events. Does not wait.
    pub(crate) fn deliver_events(&self, events: &[Event]) {
        for event in events {
            match *event {
                Event::LockGranted { wait, file, .. } => self.waits.granted(wait, file),
                Event::BarrierPassed { wait, round } => self.waits.wake(wait, Wake::Passed(round)),
                Event::Changed { wait, lane, number } => self.waits.wake(wait, Wake::Changed(lane, number)),
            }
        }
    }
}
