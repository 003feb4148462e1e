//! One line on standard error that names the hosts that are waited for, where that is a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ramlace_base::units::count;
use ramlace_launch::Listener;

/// What is faster shows nothing.
const DELAY: Duration = Duration::from_secs(1);
/// Hosts that are named; the others are counted.
const NAMED_MAX: usize = 4;

/// The line, once it is worth showing.
pub struct HostsProgress {
    began: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
    doing: &'static str,
}

impl HostsProgress {
    /// Begins now; nothing is drawn when standard error is no terminal, or with `--json`.
    pub fn new(json: bool) -> HostsProgress {
        let wanted = !json && std::io::stderr().is_terminal();
        HostsProgress { began: Instant::now(), wanted, bar: None, doing: "reaching" }
    }
}

impl Listener for HostsProgress {
    fn begins(&mut self, doing: &'static str) {
        self.doing = doing;
    }

    fn waits_for(&mut self, waiting: &[&str], total: usize) {
        if !self.wanted || self.began.elapsed() < DELAY {
            return;
        }
        let bar = self.bar.get_or_insert_with(new_bar);
        bar.set_message(text(self.doing, waiting, total));
        bar.tick();
    }
}

impl Drop for HostsProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn text(doing: &str, waiting: &[&str], total: usize) -> String {
    let done = total.saturating_sub(waiting.len());
    let total = count(total as u64, "host");
    let named = waiting.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match waiting.len().saturating_sub(NAMED_MAX) {
        0 => format!("{doing}: {done} of {total}; waiting for {named}"),
        more => format!("{doing}: {done} of {total}; waiting for {named} and {more} more"),
    }
}

fn new_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}").expect("the template is constant");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_waited_for_is_named() {
        assert_eq!(text("starting", &["a", "b"], 5), "starting: 3 of 5 hosts; waiting for a, b");
        let many = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(text("stopping", &many, 6), "stopping: 0 of 6 hosts; waiting for a, b, c, d and 2 more");
    }
}
