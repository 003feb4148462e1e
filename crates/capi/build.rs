//! Names the shared library for the linker of the programs that use it.

fn main() {
    // Raised with RAMLACE_ABI_VERSION by every change that breaks programs already built.
    let soname = "libramlace.so.0";
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=RAMLACE_SONAME={soname}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // The library has a thread and a fork handler: it stays when a program closes it by dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
