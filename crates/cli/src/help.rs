//! The help's texts, laid out once for the width at hand.
//!
//! In the source a paragraph has line breaks where a line of code ends, and an example has its explanation behind two
//! blanks or more. Both are laid out here: paragraphs are filled, and what explains an example goes under it where it does
//! not fit behind. So nothing is left that would be broken a second time.

use std::io;

use clap::{Command, CommandFactory};
use rustix::termios::tcgetwinsize;

use crate::args::Cli;

/// Longer lines are hard to read.
const WIDTH_MAX: usize = 100;
/// Shorter ones cannot hold a word beside an indentation.
const WIDTH_MIN: usize = 40;
/// How far an explanation that stands under its example is moved in.
const INDENT: &str = "      ";

/// The command line with texts for the terminal at hand.
pub fn command() -> Command {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    laid_out(Cli::command(), asked.or_else(terminal).filter(|width| *width > 0).unwrap_or(WIDTH_MAX))
}

fn laid_out(command: Command, width: usize) -> Command {
    let width = width.clamp(WIDTH_MIN, WIDTH_MAX);
    let names: Vec<String> = command.get_subcommands().map(|found| found.get_name().to_owned()).collect();
    let text = command.get_after_help().map(|text| lay_out(&text.to_string(), width));
    let mut command = command.term_width(width);
    if let Some(text) = text {
        command = command.after_help(text);
    }
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, |found| laid_out(found, width)))
}

/// Fills paragraphs and breaks what explains an example; lines that begin with blanks are examples.
fn lay_out(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        let is_plain = !line.is_empty() && !line.starts_with(' ');
        if is_plain {
            paragraph.extend([if paragraph.is_empty() { "" } else { " " }, line]);
            // A heading such as "Examples:" is followed by what it announces.
            if !line.ends_with(':') {
                continue;
            }
        }
        lines.extend(fill(&std::mem::take(&mut paragraph), width, ""));
        if !is_plain {
            lines.extend(example(line, width));
        }
    }
    lines.join("\n").trim_end().to_owned()
}

/// A line that is an example, as it is where it fits.
fn example(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.to_owned()];
    }
    let indent = line.len() - line.trim_start().len();
    // The explanation follows the last gap of two blanks.
    let Some((command, explanation)) = line[indent..].rsplit_once("  ") else { return vec![line.to_owned()] };
    let command = format!("{}{}", &line[..indent], command.trim_end());
    std::iter::once(command).chain(fill(explanation, width, INDENT)).collect()
}

/// Words in lines of at most `width` letters; a word that is longer has a line of its own.
fn fill(text: &str, width: usize, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.extend([" ", word])
            }
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_is_broken_once() {
        let text =
            "Examples:\n  ramlace x /a   what it does to a\n\nOne line of a paragraph\nand its second line.";
        assert_eq!(lay_out(text, 100), text.replace("paragraph\nand", "paragraph and"));
        assert_eq!(
            lay_out(text, 40),
            "Examples:\n  ramlace x /a   what it does to a\n\nOne line of a paragraph and its second\nline."
        );
        assert_eq!(
            example("  ramlace x /a   what it does to a", 20),
            ["  ramlace x /a", "      what it does", "      to a"]
        );
    }

    #[test]
    fn every_commands_help_fits_the_width() {
        for width in [60, 80, 100, 200] {
            let mut command = laid_out(Cli::command(), width);
            command.build();
            for found in command.get_subcommands_mut().filter(|found| !found.is_hide_set()) {
                let help = found.render_long_help().to_string();
                let after = help.split("Examples:").nth(1).unwrap_or_default();
                for pair in after.lines().collect::<Vec<_>>().windows(2) {
                    let (line, next) = (pair[0], pair[1]);
                    let filled = !line.is_empty()
                        && !line.starts_with(' ')
                        && !next.is_empty()
                        && !next.starts_with(' ');
                    let word = next.split(' ').next().unwrap_or_default();
                    // The next line's first word did not fit: nothing was broken before it had to be.
                    assert!(
                        !filled
                            || line.ends_with(':')
                            || line.chars().count() + 1 + word.chars().count() > width.min(100),
                        "{}, {width}: {line:?} {next:?}",
                        found.get_name()
                    );
                }
            }
        }
    }
}
