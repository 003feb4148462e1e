//! The committed header is what cbindgen writes from the source of today.
//!
//! After a change of the source: `RAMLACE_WRITE_HEADER=1 cargo test --release -p ramlace-capi`.

use std::path::Path;

/// The source in the order of the header.
const SOURCES: [&str; 17] = [
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
    "names",
    "xattrs",
    "directory",
    "layout",
];

fn generate() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = SOURCES
        .iter()
        .fold(builder, |builder, source| builder.with_src(root.join(format!("src/{source}.rs"))));
    let mut written = Vec::new();
    builder.generate().expect("cbindgen understands the source").write(&mut written);
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
