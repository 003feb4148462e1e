//! Bytes in order: standard input, standard output and pipes. One thread reads ahead while the
//! other writes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::sync_channel;

use ramlace_base::{Error, Result};

use crate::failure::{Done, Failure};
use crate::output::stdout_failure;

/// Bytes of one buffer.
const BUFFER_BYTES: usize = 4 << 20;
/// Buffers that go round: one is filled, one written, one waits.
const BUFFERS: usize = 3;
/// What a pipe may hold, where the system allows it.
const PIPE_BYTES: usize = 1 << 20;

/// Moves bytes until `read` returns 0. `write` sees them in order.
pub fn pump(
    mut read: impl FnMut(&mut [u8]) -> Result<usize> + Send,
    mut write: impl FnMut(&[u8]) -> Done,
) -> Done {
    std::thread::scope(|scope| {
        let (filled, to_write) = sync_channel::<Result<(Vec<u8>, usize)>>(BUFFERS);
        let (emptied, to_fill) = sync_channel::<Vec<u8>>(BUFFERS);
        for _ in 0..BUFFERS {
            emptied.send(Vec::new()).expect("the channel has room for all buffers");
        }
        scope.spawn(move || {
            // Ends when the writer has ended, or when there is nothing more to read.
            while let Ok(mut buffer) = to_fill.recv() {
                buffer.resize(BUFFER_BYTES, 0);
                let outcome = read(&mut buffer).map(|count| (buffer, count));
                let last = !matches!(outcome, Ok((_, 1..)));
                if filled.send(outcome).is_err() || last {
                    return;
                }
            }
        });
        let outcome = loop {
            let Ok(next) = to_write.recv() else { break Ok(()) };
            let (buffer, count) = match next {
                Ok(next) => next,
                Err(error) => break Err(Failure::Error(error)),
            };
            if count == 0 {
                break Ok(());
            }
            if let Err(failure) = write(&buffer[..count]) {
                break Err(failure);
            }
            // The reader has ended when it does not take the buffer back.
            let _ = emptied.send(buffer);
        };
        drop((to_write, emptied));
        outcome
    })
}

/// Reads a pipe until the buffer is full or the pipe has ended.
pub fn read_full(file: &mut File, buffer: &mut [u8], shown: &str) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::from_io(&error, format!("reading {shown}"))),
        }
    }
    Ok(done)
}

/// Standard input, unbuffered.
pub fn stdin() -> Result<File> {
    let descriptor = std::io::stdin().as_fd().try_clone_to_owned();
    descriptor.map(File::from).map_err(|error| Error::from_io(&error, "opening standard input"))
}

/// Standard output, unbuffered.
pub struct Stdout(File);

impl Stdout {
    /// Takes standard output; nothing else may be written there meanwhile.
    pub fn open() -> Result<Stdout> {
        let descriptor = std::io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::from_io(&error, "opening standard output"))?;
        // A larger pipe means fewer switches between the two programs; where it is none, or the
        // system refuses, nothing is lost.
        let _ = rustix::pipe::fcntl_setpipe_size(&descriptor, PIPE_BYTES);
        Ok(Stdout(descriptor.into()))
    }

    /// Writes all bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Done {
        self.0.write_all(bytes).map_err(|error| stdout_failure(&error))
    }

    /// Ends what was written: some file systems say only then that it did not fit.
    pub fn close(self) -> Done {
        ramlace_copy::close(self.0).map_err(|error| stdout_failure(&error))
    }
}

#[cfg(test)]
mod tests {
    use ramlace_base::ErrorKind;

    use super::*;

    #[test]
    fn bytes_arrive_in_order() {
        let mut next = 0u32;
        let read = |buffer: &mut [u8]| {
            next += 1;
            buffer[0] = next as u8;
            Ok(if next <= 10 { next as usize } else { 0 })
        };
        let mut seen = Vec::new();
        pump(read, |bytes| {
            seen.push((bytes.len(), bytes[0]));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, (1..=10).map(|n| (n, n as u8)).collect::<Vec<_>>());
    }

    #[test]
    fn both_ends_can_end_it() {
        let outcome = pump(|_| Ok(5), |_| Err(Failure::PipeClosed));
        assert!(matches!(outcome, Err(Failure::PipeClosed)));
        let outcome = pump(|_| Err(Error::new(ErrorKind::Lost, "gone")), |_| Ok(()));
        assert!(matches!(outcome, Err(Failure::Error(error)) if error.kind() == ErrorKind::Lost));
    }
}
