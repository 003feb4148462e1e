//! `top`: a live view of the pool's servers, clients or messages.

use std::time::{Duration, Instant};

use ramlace_base::Result;
use ramlace_base::units::count;
use ramlace_client::{Pool, pool_name};

use crate::failure::{Done, Failure};
use crate::mounting::mounts_of;
use crate::output::Output;
use crate::place::connect_options;
use crate::show::escaped;
use crate::top::{
    Asking, Clients, Counted, Event, Input, Line, Looking, Messages, Samples, Sort, Subject, Terminal, View,
    as_json, client_table, clients_json, counted_of, events_of, millis_since, number_text, page, plain,
    table_page,
};

const EXAMPLES: &str = "\
Examples:
  ramlace top                    q quits, s sorts, p pauses, c and m show clients and messages, ? helps
  ramlace top --pool node0:7000  the pool of that server
  ramlace top --clients          how many bytes each client moves, the busiest first
  ramlace top --messages         what the servers are asked, how often, and how long their answers take
  ramlace top --once             one table; so too when standard output is no terminal
  ramlace top --json | jq '.servers[].read_bytes_per_second'

Rates are those of the last interval, and so are the times of messages: within P50 and P99, 50 and 99 of 100 answers
were made. Bytes that programs read and write in memory that they share with a server of their machine pass no
request and are not counted. With --once and --json the exit code is 1 when a server does not answer.";

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
    #[arg(long, conflicts_with = "messages")]
    pub clients: bool,

    /// Show what the servers are asked and how long their answers take, instead of the servers
    #[arg(long)]
    pub messages: bool,

    /// Milliseconds between two questions to a server
    #[arg(long, value_name = "MILLIS", default_value = INTERVAL_MILLIS,
          value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval: u64,
}

impl Args {
    fn subject(&self) -> Subject {
        match (self.clients, self.messages) {
            (true, _) => Subject::Clients,
            (_, true) => Subject::Messages,
            _ => Subject::Servers,
        }
    }
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
    let (interval, subject) = (Duration::from_millis(args.interval), args.subject());
    if !(args.once || output.json || !Terminal::is_there()) {
        return live(pool, &name, interval, subject, output);
    }
    match subject {
        Subject::Servers => once(&pool, &name, interval, output),
        Subject::Clients | Subject::Messages => counts_once(&pool, interval, subject, output),
    }
}

/// Two rounds of answers, for rates.
fn once(pool: &Pool, name: &str, interval: Duration, output: &mut Output) -> Done {
    let began = Instant::now();
    let millis = || millis_since(began);
    let mut samples = Samples::default();
    events_of(pool, millis())?.into_iter().for_each(|event| samples.take(event));
    std::thread::sleep(interval);
    events_of(pool, millis())?.into_iter().for_each(|event| samples.take(event));
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

/// Two samples of what the servers have counted, for rates.
fn counts_once(pool: &Pool, interval: Duration, subject: Subject, output: &mut Output) -> Done {
    let began = Instant::now();
    let mut counts = Counts::default();
    counts.take(counted_of(pool, began));
    std::thread::sleep(interval);
    let counted = counted_of(pool, began)?;
    let complete = counted.complete;
    counts.take(Ok(counted));
    let looking = Looking { subject, ..Looking::default() };
    if output.json {
        output.json(&counts.json(looking))?;
    } else {
        counts.table(looking).into_iter().try_for_each(|line| output.line(line))?;
    }
    output.flush()?;
    if complete { Ok(()) } else { Err(Failure::Told) }
}

/// What the servers have counted: which clients ask them, and what they ask.
#[derive(Clone, Default)]
struct Counts {
    clients: Clients,
    messages: Messages,
    /// What else is to be said.
    trouble: String,
}

impl Counts {
    fn take(&mut self, counted: Result<Counted>) {
        match counted {
            Ok(Counted { answers, complete }) => {
                self.clients.look(&answers);
                self.messages.look(&answers);
                self.trouble =
                    if complete { String::new() } else { "; some servers do not answer".to_owned() };
            }
            Err(error) => self.trouble = format!("; {}", escaped(error.message().as_bytes())),
        }
    }

    fn title(&self, pool: &str, subject: Subject) -> String {
        let sum = match (subject, self.messages.rates()) {
            (Subject::Messages, Some((calls, errors))) => {
                format!("{} calls/s, {} errors/s", number_text(calls), number_text(errors))
            }
            (Subject::Messages, None) => "messages".to_owned(),
            _ => count(self.clients.count() as u64, "client"),
        };
        format!("Pool '{}': {sum}{}", escaped(pool.as_bytes()), self.trouble)
    }

    fn table(&self, looking: Looking) -> Vec<String> {
        match looking.subject {
            Subject::Messages => self.messages.table(looking.sort_messages),
            _ => client_table(&self.clients.sorted(looking.sort_clients)),
        }
    }

    fn json(&self, looking: Looking) -> serde_json::Value {
        match looking.subject {
            Subject::Messages => self.messages.json(looking.sort_messages),
            _ => clients_json(&self.clients.sorted(looking.sort_clients)),
        }
    }
}

/// The view until the user quits. Threads of its own ask: a server that is silent blocks no key.
fn live(pool: Pool, name: &str, interval: Duration, subject: Subject, output: &mut Output) -> Done {
    let mut screen = Screen { terminal: Terminal::open(output)?, drawn: None };
    let mut looking = Looking { subject, ..Looking::default() };
    loop {
        let (servers, counts);
        let next = if looking.subject == Subject::Servers {
            servers = Asking::servers(&pool, interval)?;
            servers_live(name, &servers, looking, &mut screen, output)?
        } else {
            counts = Asking::counts(&pool, interval);
            counts_live(name, &counts, looking, &mut screen, output)?
        };
        let Some(next) = next else {
            // The terminal is given back at once; the session ends with its last owner, a thread that asks.
            drop((screen, pool));
            return Ok(());
        };
        looking = next;
    }
}

/// The terminal, and what it shows.
struct Screen {
    terminal: Terminal,
    drawn: Option<Vec<Line>>,
}

impl Screen {
    /// Draws what is new, and waits for a key for a moment; `None` when the user quits.
    fn show(&mut self, lines: Vec<Line>, looking: Looking, output: &mut Output) -> Done<Option<Looking>> {
        if self.drawn.as_ref() != Some(&lines) {
            self.terminal.draw(&lines, output)?;
            self.drawn = Some(lines);
        }
        Ok(match self.terminal.wait(TICK)? {
            Input::End => None,
            Input::Nothing => Some(looking),
            Input::Key(key) => looking.after(key),
        })
    }
}

/// The servers, until another subject is to be shown.
fn servers_live(
    name: &str,
    asking: &Asking<Event>,
    mut looking: Looking,
    screen: &mut Screen,
    output: &mut Output,
) -> Done<Option<Looking>> {
    let began = Instant::now();
    let (mut samples, mut shown) = (Samples::default(), Samples::default());
    let (mut mounted, mut millis) = (mounts(name)?, 0);
    loop {
        let mut news = false;
        for event in asking.arrived() {
            samples.take(event);
            news = true;
        }
        if news && !looking.paused {
            shown.clone_from(&samples);
            mounted = mounts(name)?;
            millis = millis_since(began);
        }
        let (width, height) = screen.terminal.size();
        let view = View::new(name, &shown, mounted.clone(), looking.sort, millis);
        let lines = page(&view, width, height, &looking);
        match screen.show(lines, looking, output)? {
            Some(next) if next.subject == Subject::Servers => looking = next,
            next => return Ok(next),
        }
    }
}

/// The clients or the messages, until the servers are to be shown.
fn counts_live(
    name: &str,
    asking: &Asking<Result<Counted>>,
    mut looking: Looking,
    screen: &mut Screen,
    output: &mut Output,
) -> Done<Option<Looking>> {
    let (mut counts, mut shown) = (Counts::default(), Counts::default());
    loop {
        let mut news = false;
        for counted in asking.arrived() {
            counts.take(counted);
            news = true;
        }
        if news && !looking.paused {
            shown.clone_from(&counts);
        }
        let (width, height) = screen.terminal.size();
        let title = shown.title(name, looking.subject);
        let lines = table_page(&title, shown.table(looking), width, height, &looking);
        match screen.show(lines, looking, output)? {
            Some(next) if next.subject != Subject::Servers => looking = next,
            next => return Ok(next),
        }
    }
}
