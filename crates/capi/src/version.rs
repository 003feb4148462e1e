//! Which library this is.

use std::ffi::{c_char, c_int};

/// The version of the ABI that this header describes: the number in the library's soname.
pub const RAMLACE_ABI_VERSION: c_int = 0;

/// The version of the library that is loaded, such as "0.1.0"; RAMLACE_VERSION is the version of
/// the header. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn ramlace_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

/// The version of the ABI of the library that is loaded. A program that loads the library by
/// dlopen compares it with RAMLACE_ABI_VERSION; for others the linker has done so by the soname.
/// Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn ramlace_abi_version() -> c_int {
    RAMLACE_ABI_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_soname_and_library_have_the_version_of_the_package() {
        let (version, header) = (env!("CARGO_PKG_VERSION"), include_str!("../cbindgen.toml"));
        let mut lines = vec![format!("#define RAMLACE_VERSION \"{version}\"")];
        for (part, number) in ["MAJOR", "MINOR", "PATCH"].iter().zip(version.split('.')) {
            lines.push(format!("#define RAMLACE_VERSION_{part} {number}"));
        }
        for line in lines {
            assert!(header.lines().any(|found| found == line), "cbindgen.toml lacks: {line}");
        }
        // SAFETY: the text is a constant that ends with a NUL.
        let told = unsafe { std::ffi::CStr::from_ptr(ramlace_version()) };
        assert_eq!(told.to_str(), Ok(version));
        assert_eq!(env!("RAMLACE_SONAME"), format!("libramlace.so.{}", ramlace_abi_version()));
    }
}
