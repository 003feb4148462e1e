//! Paths, for tests that speak of files as people do.

use ramlace_base::{Error, ErrorKind, Name, Result, limits};

use crate::{Model, Node};

impl Model {
    /// The node at the end of a path from the root. Slashes separate names; symbolic links on
    /// the way are followed, a last one only with `follow`.
    pub fn resolve(&self, path: impl AsRef<[u8]>, follow: bool) -> Result<Node> {
        match self.resolve_parent(&path)? {
            Some((parent, name)) => self.step(parent, &name, follow, &mut 0),
            None => Ok(Model::ROOT),
        }
    }

    /// The directory that a path's last name is in, and that name; `None` for the root itself.
    pub fn resolve_parent(&self, path: impl AsRef<[u8]>) -> Result<Option<(Node, Name)>> {
        self.walk(Model::ROOT, path.as_ref(), &mut 0)
    }

    fn walk(&self, from: Node, path: &[u8], links: &mut usize) -> Result<Option<(Node, Name)>> {
        let mut at = if path.first() == Some(&b'/') { Model::ROOT } else { from };
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            let name = Name::new(name)?;
            if names.peek().is_none() {
                return Ok(Some((at, name)));
            }
            at = self.step(at, &name, true, links)?;
        }
        Ok(None)
    }

    fn step(&self, parent: Node, name: &Name, follow: bool, links: &mut usize) -> Result<Node> {
        let node = self.lookup(parent, name)?;
        let Ok(target) = self.read_link(node) else { return Ok(node) };
        if !follow {
            return Ok(node);
        }
        *links += 1;
        if *links > limits::SYMLINK_DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::Loop,
                format!("'{name}' leads through too many symbolic links"),
            ));
        }
        match self.walk(parent, &target, links)? {
            Some((parent, name)) => self.step(parent, &name, true, links),
            None => Ok(Model::ROOT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn paths_lead_through_directories_and_links() {
        let mut model = Model::new();
        let directory = model.mkdir(Model::ROOT, &name("d"), 0o755).unwrap();
        let (file, made) = model.create(directory, &name("f"), 0o644, true).unwrap();
        assert!(made);
        let link = model.symlink(Model::ROOT, &name("l"), b"d/f").unwrap();
        model.symlink(directory, &name("up"), b"/d").unwrap();
        model.symlink(Model::ROOT, &name("round"), b"round").unwrap();
        assert_eq!(model.resolve("/d//f", false), Ok(file));
        assert_eq!(model.resolve("l", true), Ok(file));
        assert_eq!(model.resolve("l", false), Ok(link));
        assert_eq!(model.resolve("d/up/up/f", true), Ok(file));
        assert_eq!(model.resolve("/", true), Ok(Model::ROOT));
        assert_eq!(model.resolve("round", true).unwrap_err().kind(), ErrorKind::Loop);
        assert_eq!(model.resolve("d/f/x", true).unwrap_err().kind(), ErrorKind::NotDirectory);
        assert_eq!(model.resolve("../x", true).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn an_open_file_outlives_its_name() {
        let mut model = Model::new();
        let (file, _) = model.create(Model::ROOT, &name("f"), 0o644, true).unwrap();
        model.write(file, 5000, b"end").unwrap();
        model.unlink(Model::ROOT, &name("f")).unwrap();
        assert_eq!(model.read(file, 4998, 10), Ok(b"\0\0end".to_vec()));
        model.close(file).unwrap();
        assert_eq!(model.stat(file).unwrap_err().kind(), ErrorKind::Stale);
    }

    #[test]
    fn cut_bytes_come_back_as_zeros() {
        let mut model = Model::new();
        let (file, _) = model.create(Model::ROOT, &name("f"), 0o644, true).unwrap();
        model.write(file, 0, &[7; 9000]).unwrap();
        model.truncate(file, 3).unwrap();
        model.truncate(file, 9000).unwrap();
        let mut expected = vec![0; 9000];
        expected[..3].fill(7);
        assert_eq!(model.read(file, 0, 10_000), Ok(expected));
        assert_eq!(model.append(file, b"x"), Ok(9000));
        assert_eq!(model.truncate(file, u64::MAX).unwrap_err().kind(), ErrorKind::TooBig);
    }
}
