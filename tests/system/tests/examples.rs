//! The examples of the client library do what they say.

use std::path::PathBuf;

use ramlace_system_tests::TestPool;

/// Where cargo puts an example: beside the directory of the test programs.
fn example(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    let built = program.parent().and_then(|deps| deps.parent()).expect("cargo's directories");
    built.join("examples").join(name)
}

#[test]
fn the_rust_example_greets() {
    let pool = TestPool::start(1, "64MiB");
    let done = pool.program(&example("hello")).output().expect("cargo has built the example");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "hello from a pool of memory\n");
}
