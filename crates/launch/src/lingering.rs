//! Runtime directories that do not outlive the user's last session.

use std::path::Path;

use ramlace_client::PoolDirectory;

/// systemd removes a user's runtime directory with the last session, and the pool's with it, unless the user lingers.
pub fn lingering_note(directory: &PoolDirectory) -> Option<String> {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok()?;
    let is_systemd = Path::new("/run/systemd/system").exists();
    let lingers = Path::new("/var/lib/systemd/linger").join(&user).exists();
    note(directory.path(), &user, is_systemd && !lingers)
}

fn note(path: &Path, user: &str, is_removed: bool) -> Option<String> {
    (path.starts_with("/run/user") && is_removed).then(|| {
        format!(
            "{} is removed when the last session of {user} ends; 'loginctl enable-linger' keeps it",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_ends_with_the_last_session_is_told_of() {
        let told = note(Path::new("/run/user/7/ramlace/lab"), "ann", true).unwrap();
        assert!(told.contains("/run/user/7/ramlace/lab") && told.contains("enable-linger"), "{told}");
        assert_eq!(note(Path::new("/run/user/7/ramlace/lab"), "ann", false), None);
        assert_eq!(note(Path::new("/tmp/ramlace-7/lab"), "ann", true), None);
    }
}
