//! `top`: a live view of the pool's servers.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ramlace_base::Result;
use ramlace_base::units::count;
use ramlace_client::{Pool, pool_name};
use ramlace_wire::metrics::Metrics;

use crate::failure::{Done, Failure};
use crate::mounting::mounts_of;
use crate::output::Output;
use crate::place::connect_options;
use crate::show::escaped;
use crate::top::{
    Asking, Clients, ESCAPE, Heard, Samples, Sort, SortClients, Terminal, View, as_json, client_page,
    client_table, clients_json, events_of, finish_page, page, plain,
};

const EXAMPLES: &str = "\
Examples:
  ramlace top                    q quits, s sorts, p pauses, ? helps
  ramlace top --pool node0:7000  the pool of that server
  ramlace top --clients          how many bytes each client moves, the busiest first
  ramlace top --once             one table; so too when standard output is no terminal
  ramlace top --json | jq '.servers[].read_bytes_per_second'

Rates are those of the last interval. Bytes that programs read and write in memory that they share with a
server of their machine pass no request and are not counted. With --once and --json the exit code is 1 when a
server does not answer.";

/// How often the keyboard and the window's size are checked; the page is drawn when something has changed.
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

    /// Show the pool's clients and what each moves, instead of its servers
    #[arg(long)]
    pub clients: bool,

    /// Milliseconds between two questions to a server
    #[arg(long, value_name = "MILLIS", default_value = INTERVAL_MILLIS,
          value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval: u64,
}

/// Shows the pool until the user quits, or once.
pub fn run(args: &Args, named: Option<&str>, output: &mut Output) -> Done {
    let mut options = connect_options(named);
    options.deadline_millis = ANSWER_MILLIS_MAX;
    let pool = Pool::connect(&options)?;
    let name = match named {
        Some(address) if address.contains(':') => address.to_owned(),
        named => pool_name(named),
    };
    let interval = Duration::from_millis(args.interval);
    if args.clients {
        let plain = args.once || output.json || !Terminal::is_there();
        return if plain {
            clients_once(&pool, interval, output)
        } else {
            clients_live(&pool, &name, interval, output)
        };
    }
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
    let millis = || millis_since(began);
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

/// What the servers that answer have counted, and whether all did.
fn ask_clients(pool: &Pool) -> Result<(Vec<(u16, Metrics)>, bool)> {
    let told = pool.metrics()?;
    let all = told.iter().all(|(_, metrics)| metrics.is_ok());
    Ok((told.into_iter().filter_map(|(entry, metrics)| Some((entry.server.0, metrics.ok()?))).collect(), all))
}

/// Two samples of the clients, for rates.
fn clients_once(pool: &Pool, interval: Duration, output: &mut Output) -> Done {
    let began = Instant::now();
    let mut clients = Clients::default();
    clients.look(&ask_clients(pool)?.0, millis_since(began));
    std::thread::sleep(interval);
    let (answers, all) = ask_clients(pool)?;
    clients.look(&answers, millis_since(began));
    let sorted = clients.sorted(SortClients::default());
    if output.json {
        output.json(&clients_json(&sorted))?;
    } else {
        client_table(&sorted).into_iter().try_for_each(|line| output.line(line))?;
    }
    output.flush()?;
    if all { Ok(()) } else { Err(Failure::Told) }
}

/// The clients until the user quits. A thread of its own asks: a server that is silent blocks no key.
fn clients_live(pool: &Pool, name: &str, interval: Duration, output: &mut Output) -> Done {
    let began = Instant::now();
    let (tell, told) = channel();
    let asking = pool.clone();
    std::thread::spawn(move || {
        loop {
            let next = Instant::now() + interval;
            if tell.send(ask_clients(&asking)).is_err() {
                return;
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    let terminal = Terminal::open(output)?;
    let (mut clients, mut sort, mut trouble) = (Clients::default(), SortClients::default(), String::new());
    let mut drawn = None;
    loop {
        for answers in told.try_iter() {
            match answers {
                Ok((answers, all)) => {
                    clients.look(&answers, millis_since(began));
                    trouble = if all { String::new() } else { "; some servers do not answer".to_owned() };
                }
                Err(error) => trouble = format!("; {}", escaped(error.message().as_bytes())),
            }
        }
        let (width, height) = terminal.size();
        let sorted = clients.sorted(sort);
        let title =
            format!("Pool '{}': {}{trouble}", escaped(name.as_bytes()), count(sorted.len() as u64, "client"));
        let footer = format!("q quit   s sort (by {})", sort.name());
        let mut lines = client_page(&title, &sorted, height.saturating_sub(1));
        finish_page(&mut lines, &footer, width, height);
        if drawn.as_ref() != Some(&lines) {
            terminal.draw(&lines, output)?;
            drawn = Some(lines);
        }
        match terminal.wait(TICK)? {
            Heard::End | Heard::Key(b'q' | b'Q' | ESCAPE) => return Ok(()),
            Heard::Key(b's' | b'S') => sort = sort.next(),
            Heard::Key(_) | Heard::Nothing => {}
        }
    }
}

fn millis_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// What the keys change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Looking {
    sort: Sort,
    paused: bool,
    help: bool,
}

impl Looking {
    /// Another view, or `None` to quit.
    fn after(self, key: u8) -> Option<Looking> {
        match key {
            b'q' | b'Q' => None,
            // In the help, the key leaves the help alone.
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
            millis = millis_since(began);
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
