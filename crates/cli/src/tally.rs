//! How far a walk through a big tree has come: on standard error, after a second, where that is a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Walks that are faster show nothing.
const DELAY: Duration = Duration::from_secs(1);

/// A count of things, shown while it grows.
pub struct Tally {
    began: Instant,
    wanted: bool,
    count: u64,
    bar: Option<ProgressBar>,
}

impl Tally {
    /// Begins at 0. `prints`: results go to standard output meanwhile, so that on a terminal the count would
    /// only be in their way.
    pub fn new(json: bool, prints: bool) -> Tally {
        let in_the_way = prints && std::io::stdout().is_terminal();
        let wanted = !json && !in_the_way && std::io::stderr().is_terminal();
        Tally { began: Instant::now(), wanted, count: 0, bar: None }
    }

    /// One more; `what` says of the whole what is known so far.
    pub fn add(&mut self, what: impl FnOnce() -> String) {
        self.count += 1;
        // The clock and the text cost more than most steps of a walk.
        if !self.wanted || !self.count.is_multiple_of(64) || self.began.elapsed() < DELAY {
            return;
        }
        let bar = self.bar.get_or_insert_with(new_bar);
        bar.set_message(what());
        bar.set_position(self.count);
    }

    /// Says something without spoiling what is shown.
    pub fn pause(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn new_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {human_pos} looked at  {msg}")
        .expect("the template is constant");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)).with_style(style)
}
