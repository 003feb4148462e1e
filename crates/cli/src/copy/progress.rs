//! A bar on standard error for copies that take over a second, where somebody looks at it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
        let bar = self.bar.get_or_insert_with(|| new_bar(total.is_some(), self.began.elapsed()));
        if let Some(total) = total {
            bar.set_length(total);
        }
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

fn new_bar(has_total: bool, elapsed: Duration) -> ProgressBar {
    let template = if has_total {
        "{wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left"
    } else {
        "{spinner} {binary_bytes}  {binary_bytes_per_sec}"
    };
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10))
        .with_style(style)
        .with_elapsed(elapsed)
}
