//! The committed header is what cbindgen writes from the source of today.
//!
//! After a change of the source: `RAMLACE_WRITE_HEADER=1 cargo test --release -p ramlace-capi`.

use std::path::Path;

/// The source in the order of the header.
const SOURCES: [&str; 18] = [
    "version",
    "failure",
    "kinds",
    "types",
    "pool",
    "open",
    "file",
    "vectors",
    "runs",
    "locks",
    "coordination",
    "mapping",
    "views",
    "pending",
    "names",
    "xattrs",
    "directory",
    "layout",
];

/// What C sees where a function has an argument of a type of `pass.rs`: each is no more than that to the compiler, too
/// (`repr(transparent)`). A `T` stands for what the type is of.
const ARGUMENTS: [(&str, &str); 13] = [
    ("Text", "*const c_char"),
    ("Times", "*const ramlace_time"),
    ("Length", "usize"),
    ("Source", "*const c_void"),
    ("Target<T>", "*mut T"),
    ("Out<T>", "*mut T"),
    ("Filled<T>", "*mut T"),
    ("Given<T>", "*const T"),
    ("Items<Buffer>", "*const iovec"),
    ("Items<Text>", "*const *const c_char"),
    ("Items<T>", "*const T"),
    ("Places<T>", "*mut T"),
    ("Count<T>", "T"),
];

/// The source with the arguments' types as C sees them.
fn as_c_sees(source: &str) -> String {
    let mut text = source.to_owned();
    for (ours, theirs) in ARGUMENTS {
        let begin = format!(": {}", ours.trim_end_matches("T>"));
        let mut at = 0;
        while let Some(found) = text[at..].find(&begin).map(|found| at + found + 2) {
            at = found;
            let length = text[found..].find([',', ')', '\n']).expect("a type ends");
            let name = &text[found..found + length];
            let of = name.split_once('<').map_or("", |(_, of)| of.trim_end_matches('>'));
            if name == ours.replace("<T>", &format!("<{of}>")) {
                text.replace_range(found..found + length, &theirs.replace('T', of));
            }
        }
    }
    text
}

fn generate() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    // Tests run at the same time: each has its own.
    let seen =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("header-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&seen).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in SOURCES.map(|source| format!("{source}.rs")) {
        let source = std::fs::read_to_string(root.join("src").join(&name)).unwrap();
        std::fs::write(seen.join(&name), as_c_sees(&source)).unwrap();
        builder = builder.with_src(seen.join(&name));
    }
    let mut written = Vec::new();
    builder.generate().expect("cbindgen understands the source").write(&mut written);
    std::fs::remove_dir_all(&seen).unwrap();
    String::from_utf8(written).unwrap()
}

#[test]
fn the_committed_header_is_what_the_source_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/ramlace.h");
    let generated = generate();
    if std::env::var_os("RAMLACE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "include/ramlace.h is not what the source says; write it anew:\n    \
         RAMLACE_WRITE_HEADER=1 cargo test --release -p ramlace-capi --test header"
    );
}

#[test]
fn every_exported_function_is_in_the_header_and_documented() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut exported: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(source).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("#[unsafe(no_mangle)]\n") {
            let (_, rest) = text[at..].split_once("extern \"C\" fn ").unwrap();
            exported.push(rest.split('(').next().unwrap().to_owned());
            let before = text[..at].trim_end().lines().last().unwrap();
            assert!(before.starts_with("///"), "{} is not documented", exported.last().unwrap());
        }
    }
    let header = generate();
    assert!(exported.len() > 40, "{exported:?}");
    for name in &exported {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}
