//! A bar on standard error for copies that take over a second, where that is a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ramlace_base::units::format_bytes;

use crate::show::duration_text;

/// Copies that are faster show nothing.
const DELAY: Duration = Duration::from_secs(1);

/// The bar, once it is worth showing.
pub struct Progress {
    began: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins now; nothing is drawn when standard error is no terminal, or with `--json`.
    pub fn new(json: bool) -> Progress {
        Progress { began: Instant::now(), wanted: !json && std::io::stderr().is_terminal(), bar: None }
    }

    /// Draws where the copy is; `total` is unknown for streams.
    pub fn update(&mut self, done: u64, total: Option<u64>) {
        if !self.wanted || self.began.elapsed() < DELAY {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| new_bar(total.is_some()));
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_message(pace(done, total, self.began.elapsed()));
        bar.set_position(done);
    }

    /// Says something without spoiling the bar.
    pub fn pause(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Bytes a second since the beginning, and the time that the rest takes at that pace.
fn pace(done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = total.filter(|_| rate > 0.0).map(|total| total.saturating_sub(done) as f64 / rate);
    let left =
        left.map_or(String::new(), |seconds| format!("  {} left", duration_text((seconds * 1000.0) as u64)));
    format!("{}/s{left}", format_bytes(rate as u64))
}

fn new_bar(has_total: bool) -> ProgressBar {
    let template = if has_total {
        "{wide_bar} {binary_bytes}/{binary_total_bytes}  {msg}"
    } else {
        "{spinner} {binary_bytes}  {msg}"
    };
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_the_whole_copy() {
        let second = Duration::from_secs(2);
        assert_eq!(pace(4 << 30, Some(12 << 30), second), "2 GiB/s  4s left");
        assert_eq!(pace(4 << 30, None, second), "2 GiB/s");
        assert_eq!(pace(0, Some(5), Duration::ZERO), "0 B/s");
    }
}
