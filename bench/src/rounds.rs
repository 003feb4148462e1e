//! Rounds in which a figure and its limits take turns, and their samples as JSON.

use std::time::Instant;

use ramlace_base::Result;
use serde_json::{Value, json};

use crate::args::Args;
use crate::clock::Processes;

/// Rounds that count; one more comes first and is dropped, because a virtual machine's memory is
/// several times slower when it is used for the first time.
const ROUNDS: usize = 5;

/// One side of a figure: ramlace, or a limit of the machine.
pub struct Side<'a> {
    /// `figure`, or what the limit is.
    pub name: &'a str,
    /// This process and the servers that work for it.
    pub processes: &'a Processes,
    /// Does the work once; returns what it found beside the time it took.
    pub work: Box<dyn FnMut() -> Result<Extra> + 'a>,
}

/// Values that a piece of work measured itself, by name.
pub type Extra = Vec<(&'static str, f64)>;

/// Runs all sides in turns and returns
/// `{name, unit, units, sides: [{side, seconds: [], cpu_seconds: []}]}`: `units` is how much work
/// one run does, and `unit` what of. The first limit is the one that the figure is judged by.
pub fn measure(args: &Args, name: &str, unit: &str, units: f64, mut sides: Vec<Side<'_>>) -> Result<Value> {
    let rounds = if args.quick { 1 } else { ROUNDS };
    sides.retain(|side| args.side.is_empty() || args.side == side.name);
    let mut samples: Vec<Vec<Extra>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (side, samples) in sides.iter_mut().zip(&mut samples) {
            let sample = run(side)?;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let named = |(side, samples): (&Side<'_>, Vec<Extra>)| {
        let mut columns = by_name(&samples);
        columns.insert("side".into(), side.name.into());
        Value::from(columns)
    };
    let sides: Vec<Value> = sides.iter().zip(samples).map(named).collect();
    Ok(json!({ "name": name, "unit": unit, "units": units, "sides": sides }))
}

fn run(side: &mut Side<'_>) -> Result<Extra> {
    let cpu = side.processes.cpu_seconds()?;
    let begun = Instant::now();
    let mut sample = (side.work)()?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = side.processes.cpu_seconds()? - cpu;
    // A piece of work that prepares something measures its part itself.
    if !sample.iter().any(|(name, _)| *name == "seconds") {
        sample.push(("seconds", seconds));
        sample.push(("cpu_seconds", cpu));
    }
    Ok(sample)
}

fn by_name(samples: &[Extra]) -> serde_json::Map<String, Value> {
    let names = samples.first().into_iter().flatten().map(|(name, _)| *name);
    let column = |name| -> Vec<f64> {
        samples.iter().flatten().filter(|(other, _)| *other == name).map(|(_, value)| *value).collect()
    };
    names.map(|name| (name.to_owned(), json!(column(name)))).collect()
}
