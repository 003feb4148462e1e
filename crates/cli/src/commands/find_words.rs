//! `find -name x` as well as `find --name x`: its words are older than the double dash.

use std::ffi::OsString;

/// The words of `find` that take a value behind them.
const WITH_VALUE: [&str; 11] = [
    "-name",
    "-iname",
    "-path",
    "-type",
    "-size",
    "-mtime",
    "-mmin",
    "-newer",
    "-newermt",
    "-maxdepth",
    "-mindepth",
];
/// Those that take none; `-print` is what happens anyway.
const ALONE: [&str; 2] = ["-print0", "-print"];

/// The command line with the words of `find` as this program's options; any other command's as it is.
pub fn with_double_dashes(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut told = Vec::new();
    // The program's name, and options that stand before the command.
    loop {
        let Some(word) = words.next() else { return told };
        let is_first = told.is_empty();
        let takes_value = word == "--pool";
        let is_option = word.as_encoded_bytes().starts_with(b"-");
        let is_find = word == "find";
        told.push(word);
        if takes_value {
            told.extend(words.next());
        } else if !is_first && !is_option {
            if is_find {
                break;
            }
            told.extend(words);
            return told;
        }
    }
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        if text == "--" {
            told.push(word);
            told.extend(words);
            return told;
        }
        let is_double = text.strip_prefix('-').is_some_and(|word| WITH_VALUE.contains(&word));
        if is_double || WITH_VALUE.contains(&text) {
            told.push(if is_double { word } else { format!("-{text}").into() });
            // Whatever its form.
            told.extend(words.next());
        } else if ALONE.contains(&text) {
            told.extend((text != "-print").then(|| format!("-{text}").into()));
        } else {
            told.push(word);
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> String {
        let words = with_double_dashes(line.split(' ').map(OsString::from));
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn single_dashes_become_double_for_find_alone() {
        for (line, expected) in [
            ("ramlace find / -name x -type f", "ramlace find / --name x --type f"),
            ("ramlace --json --pool find find -size -1M", "ramlace --json --pool find find --size -1M"),
            ("ramlace --pool=a find -name -type -print0", "ramlace --pool=a find --name -type --print0"),
            ("ramlace find --name -name -print", "ramlace find --name -name"),
            ("ramlace find -0 / -- -name", "ramlace find -0 / -- -name"),
            ("ramlace find / -nonsense", "ramlace find / -nonsense"),
            ("ramlace rm find -name", "ramlace rm find -name"),
            ("find -name", "find -name"),
            ("ramlace", "ramlace"),
            ("ramlace find -name", "ramlace find --name"),
            ("ramlace --pool", "ramlace --pool"),
        ] {
            assert_eq!(told(line), expected);
        }
    }
}
