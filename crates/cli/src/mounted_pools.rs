//! Which mounts of this machine are of the pools that a command works on: `cp` must know a file again that it reaches
//! both through a mount and by the library.

use ramlace_client::{PoolDirectory, PoolName};
use ramlace_copy::Mounts;
use ramlace_mount::MountPoint;
use ramlace_wire::PoolId;

use crate::mounting::mounts_of;

/// A pool, and how mounts may name it.
pub struct Known {
    /// Its id.
    pub id: PoolId,
    /// The addresses of its servers, and the one by which it was reached.
    pub addresses: Vec<String>,
}

/// The mounts of these pools.
pub fn mounts(known: &[Known]) -> Mounts {
    // Without /proc nothing is known of mounts, and nothing is found in their pools by a name of this machine.
    let mounts = ramlace_mount::mounts().unwrap_or_default();
    Mounts::new(mounts.iter().filter_map(|mount| {
        let (major, minor) = mount.device;
        Some((rustix::fs::makedev(major, minor), pool_of(mount, known, id_here)?))
    }))
}

/// Which of these pools is mounted there; `id_here`: the id of this user's pool of that name, whose mount it is.
fn pool_of(
    mount: &MountPoint,
    known: &[Known],
    id_here: impl Fn(&str, &MountPoint) -> Option<String>,
) -> Option<PoolId> {
    let found = match PoolName::parse(&mount.source).ok()? {
        PoolName::At(address) => known.iter().find(|known| known.addresses.contains(&address)),
        PoolName::Named(name) => {
            let id = id_here(&name, mount)?;
            known.iter().find(|known| known.id.to_string() == id)
        }
        PoolName::Default => None,
    };
    found.map(|known| known.id)
}

fn id_here(name: &str, mount: &MountPoint) -> Option<String> {
    // Another user's pool may have the same name.
    let is_its = mounts_of(name).ok()?.iter().any(|own| own.device == mount.device);
    let file =
        is_its.then(|| PoolDirectory::locate(name).and_then(|directory| directory.read_pool_file()))?;
    file.ok().map(|file| file.pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    // SEMANTICS 111.3
    #[test]
    fn a_mount_is_of_the_pool_that_its_source_names() {
        let (one, two) = (PoolId([1; 16]), PoolId([2; 16]));
        let known = [
            Known { id: one, addresses: vec!["host:1".into(), "10.0.0.1:1".into()] },
            Known { id: two, addresses: vec![] },
        ];
        let of = |source: &str| {
            let mount = MountPoint {
                dir: "/mnt".into(),
                root: "/".into(),
                kind: "fuse.ramlace".into(),
                source: source.into(),
                device: (0, 51),
                user: 0,
                flags: ramlace_mount::Flags::default(),
            };
            pool_of(&mount, &known, |name, _| match name {
                "lab" => Some(two.to_string()),
                "third" => Some(PoolId([3; 16]).to_string()),
                _ => None,
            })
        };
        assert_eq!(of("ramlace:lab"), Some(two));
        assert_eq!(of("ramlace://10.0.0.1:1"), Some(one));
        assert_eq!(of("ramlace://host:1"), Some(one));
        for source in ["ramlace:third", "ramlace:anothers", "ramlace://host:2", "else where"] {
            assert_eq!(of(source), None, "{source}");
        }
    }
}
