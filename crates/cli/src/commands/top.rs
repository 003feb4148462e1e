//! `top`: a live view of the pool's servers.

use std::time::{Duration, Instant};

use ramlace_base::Result;
use ramlace_client::{Pool, pool_name};

use crate::failure::{Done, Failure};
use crate::mounting::mounts_of;
use crate::output::Output;
use crate::place::connect_options;
use crate::top::{Asking, ESCAPE, Heard, Samples, Sort, Terminal, View, as_json, events_of, page, plain};

const EXAMPLES: &str = "\
Examples:
  ramlace top                    q quits, s sorts, p pauses, ? helps
  ramlace top --pool node0:7000  the pool of that server
  ramlace top --once             one table; so too when standard output is no terminal
  ramlace top --json | jq '.servers[].read_bytes_per_second'

Rates are those of the last interval. Bytes that programs read and write in memory that they share with a
server of their machine pass no request and are not counted. With --once and --json the exit code is 1 when a
server does not answer.";

/// How often the keyboard and the window's size are looked at; the page is drawn when something has changed.
const TICK: Duration = Duration::from_millis(100);
const INTERVAL_MILLIS: &str = "1000";
/// A server is called silent after so long, rather than after the time that a copy would wait for it.
const ANSWER_MILLIS_MAX: u32 = 3000;

/// Arguments of `top`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print one table and end
    #[arg(long)]
    pub once: bool,

    /// Milliseconds between two questions to a server
    #[arg(long, value_name = "MILLIS", default_value = INTERVAL_MILLIS,
          value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval: u64,
}

/// Shows the pool until somebody quits, or once.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let mut options = connect_options(named);
    options.deadline_millis = ANSWER_MILLIS_MAX;
    let pool = Pool::connect(&options)?;
    let name = match named {
        Some(address) if address.contains(':') => address.to_owned(),
        named => pool_name(named),
    };
    let interval = Duration::from_millis(args.interval);
    if args.once || output.json || !Terminal::is_there() {
        return once(&pool, &name, interval, output);
    }
    let asking = Asking::begin(&pool, interval)?;
    // The session ends with its last owner.
    drop(pool);
    live(&name, &asking, output)
}

/// Two rounds of answers, for rates.
fn once(pool: &Pool, name: &str, interval: Duration, output: &mut Output) -> Done {
    let began = Instant::now();
    let millis = || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut samples = Samples::default();
    events_of(pool, millis())?.into_iter().for_each(|event| samples.hear(event));
    std::thread::sleep(interval);
    events_of(pool, millis())?.into_iter().for_each(|event| samples.hear(event));
    let view = View::new(name, &samples, mounts(name)?, Sort::Number, millis());
    if output.json {
        output.json(&as_json(&view))?;
    } else {
        plain(&view).into_iter().try_for_each(|line| output.line(line))?;
    }
    output.flush()?;
    if view.is_healthy() { Ok(()) } else { Err(Failure::Told) }
}

/// Where this machine has mounted the pool.
fn mounts(name: &str) -> Result<Vec<String>> {
    Ok(mounts_of(name)?.into_iter().map(|mount| mount.dir.to_string_lossy().into_owned()).collect())
}

/// What the keys change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Looking {
    sort: Sort,
    paused: bool,
    help: bool,
}

impl Looking {
    /// Another way to look, or `None` to quit.
    fn after(self, key: u8) -> Option<Looking> {
        match key {
            b'q' | b'Q' => None,
            // Whoever reads the help leaves the help.
            ESCAPE if !self.help => None,
            b's' | b'S' => Some(Looking { sort: self.sort.next(), ..self }),
            b'p' | b'P' | b' ' => Some(Looking { paused: !self.paused, ..self }),
            b'?' | b'h' => Some(Looking { help: !self.help, ..self }),
            _ => Some(Looking { help: false, ..self }),
        }
    }
}

fn live(name: &str, asking: &Asking, output: &mut Output) -> Done {
    let began = Instant::now();
    let terminal = Terminal::open(output)?;
    let (mut samples, mut shown) = (Samples::default(), Samples::default());
    let (mut looking, mut mounted) = (Looking::default(), mounts(name)?);
    let mut millis = 0;
    let mut drawn = None;
    loop {
        let mut news = false;
        for event in asking.heard() {
            samples.hear(event);
            news = true;
        }
        if news && !looking.paused {
            shown.clone_from(&samples);
            mounted = mounts(name)?;
            millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        let (width, height) = terminal.size();
        let view = View::new(name, &shown, mounted.clone(), looking.sort, millis);
        let lines = page(&view, width, height, looking.paused, looking.help);
        if drawn.as_ref() != Some(&lines) {
            terminal.draw(&lines, output)?;
            drawn = Some(lines);
        }
        match terminal.wait(TICK)? {
            Heard::End => return Ok(()),
            Heard::Nothing => {}
            Heard::Key(key) => match looking.after(key) {
                Some(next) => looking = next,
                None => return Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_help_says() {
        let start = Looking::default();
        assert_eq!(start.after(b's').unwrap().sort, Sort::Fill);
        assert!(start.after(b'p').unwrap().paused && !start.after(b'p').unwrap().after(b' ').unwrap().paused);
        let help = start.after(b'?').unwrap();
        assert!(help.help && !help.after(ESCAPE).unwrap().help && !help.after(b'?').unwrap().help);
        assert_eq!((start.after(b'q'), start.after(ESCAPE), help.after(b'q')), (None, None, None));
        assert_eq!(start.after(b'x'), Some(start));
    }
}
