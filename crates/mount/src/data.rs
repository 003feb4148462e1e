//! The bytes of files: reading, writing, allocating, publishing.

use ramlace_base::{ByteRange, Error, ErrorKind, InodeId, Result};
use ramlace_client::{File, KeptRead, Pool, RecallsMade, Turn, acting_for};
use ramlace_fuse::{AnsweringEnd, Caller, Reply};
use ramlace_wire::Mode;
use ramlace_wire::chunk::Sought;
use ramlace_wire::inline::FirstPage;

use crate::files::unsupported;
use crate::handles::{OpenFile, Writes};
use crate::mounted::PoolFileSystem;
use crate::pages::{Pages, Request, Suspect};
use crate::users::credentials;

/// The number of times that a read for pages is done again when their leases end meanwhile.
const READS_ANEW_MAX: usize = 8;

/// The flags of a write.
#[derive(Clone, Copy)]
pub(crate) struct WriteFlags {
    /// The kernel writes back pages into which programs have stored.
    pub(crate) cached: bool,
    /// The descriptor is in append mode now.
    pub(crate) append: bool,
    /// It is open for direct I/O now.
    pub(crate) direct: bool,
    /// Set-id bits must be cleared first.
    pub(crate) kill_set_id: bool,
}

/// The result of a read.
pub(crate) struct Read {
    pub(crate) bytes: usize,
    /// The kernel must not keep these pages of this file.
    pub(crate) drops: Option<(InodeId, ByteRange)>,
    /// The answer shows the kernel where the file ends: to be dropped behind it, and the pages of this file later.
    pub(crate) ends: Option<(AnsweringEnd, Option<(InodeId, ByteRange)>)>,
}

/// The result of a write.
pub(crate) struct Written {
    pub(crate) bytes: usize,
    /// The kernel may have older bytes in pages of this range.
    pub(crate) suspect: Option<Suspect>,
    /// It counts as under way until it is answered.
    pub(crate) request: Option<Request>,
}

impl Written {
    /// A write that concerns no page of the kernel.
    fn plainly(bytes: usize) -> Written {
        Written { bytes, suspect: None, request: None }
    }
}

impl PoolFileSystem {
    /// Reads bytes for a program, or for the kernel's pages, which the kernel has requested by this number.
    pub(crate) fn read(
        &self,
        number: u64,
        range: ByteRange,
        buffer: &mut [u8],
        for_pages: Option<u64>,
    ) -> Result<Read> {
        let open = self.handles.get(number)?;
        open.finish_open(&self.versions, &self.handles);
        if open.passthrough && for_pages.is_some() {
            // `splice` fills pages even if the kernel was asked to keep none, and would show them after newer
            // stores.
            return Err(Error::new(
                ErrorKind::Invalid,
                "splice from a descriptor that may write a mapped file",
            ));
        }
        self.lost_stores.check(open.file.inode(), range)?;
        let inode = open.file.inode();
        let below_end = self.below_end(&open.file, range);
        let Some(unique) = for_pages else {
            let bytes = open.file.read_at(&mut buffer[..below_end], range.start)?;
            return Ok(Read { bytes, drops: None, ends: None });
        };
        let read = self.read_current_pages(&open, &mut buffer[..below_end], range, unique)?;
        check_meets_file(range, read.bytes)?;
        let behind = behind_last_page(range, read.bytes);
        if behind.is_empty() {
            return Ok(Read {
                bytes: read.bytes,
                drops: read.repeated.then_some((inode, range)),
                ends: None,
            });
        }
        // It is read once more, and its home asked: the kernel may have been answered a larger size meanwhile, and what
        // makes the file longer from here on recalls these pages.
        let ends = self.leases.answering_end(inode.0);
        if open.mode != Mode::Strict {
            open.file.keep_behind(behind)?;
        }
        let again = self.read_current_pages(&open, buffer, range, unique)?;
        // It may have been truncated meanwhile.
        check_meets_file(range, again.bytes)?;
        let is_repeated = read.repeated || again.repeated;
        let dropped = if is_repeated { range } else { behind_last_page(range, again.bytes) };
        let dropped = (!dropped.is_empty()).then_some((inode, dropped));
        // Nothing recalls what lies behind the end of a strict file.
        let (drops, behind) =
            if is_repeated || open.mode == Mode::Strict { (dropped, None) } else { (None, dropped) };
        Ok(Read { bytes: again.bytes, drops, ends: Some((ends, behind)) })
    }

    /// How many bytes of a range lie below the file's end, if a valid lease says where that is; then no home
    /// has to be asked. Otherwise all of them.
    fn below_end(&self, file: &File, range: ByteRange) -> usize {
        if range.end > file.known_size()
            && let Some((attributes, _)) = self.kept_attributes(file.inode())
        {
            file.learn(&attributes);
            return range.end.min(attributes.size).saturating_sub(range.start) as usize;
        }
        range.length() as usize
    }

    /// Whether programs may store into pages of this inode. A descriptor left from an earlier session does
    /// not count: what is stored by it is not written back, and this session has no right to write.
    pub(crate) fn may_be_stored_into(&self, file: &File) -> bool {
        self.handles.is_written_here(file.inode()) && file.session_may_write()
    }

    /// Bytes for the kernel's pages whose lease is still valid at the end: a read may have waited for one
    /// server so long that another has taken this mount's lease, and lets others change what it had answered.
    fn read_current_pages(
        &self,
        open: &OpenFile,
        buffer: &mut [u8],
        range: ByteRange,
        unique: u64,
    ) -> Result<KeptRead> {
        let OpenFile { file, mode, .. } = open;
        let mut repeated = false;
        let mut turn = 0;
        loop {
            let ended = self.pages.leases_ended(file.inode());
            let read = match mode {
                Mode::Strict => self.read_pages_strictly(file, buffer, range, unique)?,
                Mode::Coherent | Mode::Relaxed => self.read_pages(file, buffer, range, unique)?,
            };
            repeated |= read.repeated;
            turn += 1;
            if self.pages.leases_ended(file.inode()) == ended {
                return Ok(KeptRead { repeated, ..read });
            }
            if turn == READS_ANEW_MAX {
                // Servers take a lease only once in seconds. So often means that they need room for other
                // leases, and wait for these pages.
                return Ok(KeptRead { repeated: true, ..read });
            }
        }
    }

    /// Bytes for the kernel's pages. If programs may store into them their memory is allocated now, as on
    /// tmpfs: a lack of it is an error of the page fault (`SIGBUS`), and what is stored can always be written
    /// back.
    fn read_pages(&self, file: &File, buffer: &mut [u8], range: ByteRange, unique: u64) -> Result<KeptRead> {
        let inode = file.inode();
        let unique = self.handles.is_written_here(inode).then_some(unique);
        let reading = self.pages.begin_read(inode, file.layout(), range, unique);
        let on_turn = self.on_turn(&reading, buffer.len() as u64 == range.length());
        let mut repeated = false;
        if !self.may_be_stored_into(file) || !self.handles.may_store_into_holes(inode, range.end) {
            let read = file.read_keeping(buffer, range.start, &on_turn)?;
            if self.may_be_stored_into(file) || !has_empty_page(&buffer[..read.bytes]) {
                return Ok(read);
            }
            repeated = read.repeated;
            self.versions.note_bare_pages(inode);
            // Either an open for writing has seen this note, or it is seen here.
            if !self.may_be_stored_into(file) {
                return Ok(read);
            }
        }
        let read = file.read_for_stores(buffer, range.start, &on_turn)?;
        Ok(KeptRead { repeated: read.repeated || repeated, ..read })
    }

    /// The kernel has locked pages for a read that no thread handles yet; until this is dropped. It may go beyond the file's
    /// end: where that is, is found out when it is handled, from attributes that were recalled before the bytes were.
    pub(crate) fn read_waits(&self, number: u64, range: ByteRange, unique: u64) -> Option<Request> {
        let open = self.handles.get(number).ok()?;
        let (inode, layout) = (open.file.inode(), open.file.layout());
        let unique = self.handles.is_written_here(inode).then_some(unique);
        let read = self.pages.begin_read(inode, layout, range, unique);
        self.pages.note_turn(&read, Turn::Waits);
        Some(read)
    }

    /// The kernel may have locked pages for a write that no thread handles yet; until this is dropped.
    pub(crate) fn write_waits(&self, number: u64, range: ByteRange) -> Option<Request> {
        self.holds_pages(&*self.handles.get(number).ok()?, range)
    }

    /// The same for a write for which something else is asked first.
    fn holds_pages(&self, open: &OpenFile, range: ByteRange) -> Option<Request> {
        (open.writes == Writes::InPages).then(|| self.pages.write_waits(open.file.inode(), range))
    }

    /// Notes of a read that it is not sent yet. Not if it is already known where in these pages the file ends: that may be
    /// outdated when it is sent.
    fn on_turn<'a>(&'a self, reading: &'a Request, is_whole: bool) -> impl Fn(Turn) + 'a {
        move |turn| {
            if is_whole {
                self.pages.note_turn(reading, turn);
            }
        }
    }

    /// Writes bytes from a `write`, or (`cached`) from the kernel's pages, where programs stored them through
    /// mappings.
    pub(crate) fn write(
        &self,
        inode: InodeId,
        number: u64,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
        (unique, caller): (u64, Caller),
    ) -> Result<Written> {
        let open = self.handles.get(number)?;
        if !flags.cached {
            open.finish_open(&self.versions, &self.handles);
        }
        if flags.kill_set_id {
            let range = range_of(offset, bytes.len());
            self.drop_set_id(&open.file, caller, || self.holds_pages(&open, range))?;
        }
        if flags.cached {
            let (_request, parts) = self.pages.begin_back(inode, offset, bytes);
            let part_of =
                |part: &ByteRange| &bytes[(part.start - offset) as usize..(part.end - offset) as usize];
            let parts = parts.iter().map(|part| (part.start, part_of(part)));
            self.write_pages_back(&open.file, range_of(offset, bytes.len()), parts);
            return Ok(Written::plainly(bytes.len()));
        }
        let beside = || self.write_beside(&open.file, offset, bytes, flags.append);
        let written = match open.writes {
            Writes::Beside => Written::plainly(beside()?),
            // It was switched to this after it was opened (fcntl). The kernel may hold a page of the bytes until this is
            // answered, and may have put them there: where it assumes the end to be, and they may lie elsewhere.
            Writes::InPages if flags.append || flags.direct => {
                let range = range_of(offset, bytes.len());
                let (request, _) = self.pages.begin_through(inode, range);
                let written = beside();
                self.note_end(&open.file, range, &request, &written);
                self.refresher.drop_pages(inode);
                Written { request: Some(request), ..Written::plainly(written?) }
            }
            Writes::InPages => self.write_through(&open.file, offset, bytes, unique)?,
        };
        if !flags.append {
            self.lost_stores.end(inode, range_of(offset, written.bytes));
        }
        Ok(written)
    }

    /// Writes bytes past the kernel's pages.
    fn write_beside(&self, file: &File, offset: u64, bytes: &[u8], appends: bool) -> Result<usize> {
        if appends {
            file.append_beside(bytes)?;
            return Ok(bytes.len());
        }
        self.reserve_up_to(file, offset, FirstPage::Free)?;
        file.write_beside(bytes, offset)
    }

    /// On a mount that reserves memory a write behind the end leaves no hole.
    fn reserve_up_to(&self, file: &File, offset: u64, first_page: FirstPage) -> Result<()> {
        if self.reserves && offset > 0 { file.reserve_growth(offset, first_page) } else { Ok(()) }
    }

    /// Writes back what programs have stored into these pages. A loss is reported to programs that publish or
    /// read, and not to the kernel: it would fail the next direct write to the file, whoever makes it.
    fn write_pages_back<'a>(
        &self,
        file: &File,
        pages: ByteRange,
        mut parts: impl Iterator<Item = (u64, &'a [u8])>,
    ) {
        let (inode, mut made) = (file.inode(), RecallsMade::default());
        match parts.try_for_each(|(offset, bytes)| write_back(file, offset, bytes, &mut made)) {
            Ok(()) => self.lost_stores.end(inode, pages),
            // Others have gone on without what was stored here, and their bytes are what counts: the program
            // that stored gets the error, readers do not.
            Err(error) if error.kind() == ErrorKind::Stale && !self.pool.is_ended() => {
                let lost = Error::new(ErrorKind::Lost, error.message());
                eprintln!("ramlace: inode {inode}: stores into mapped pages are lost: {lost}");
                self.write_errors.note(inode, &lost);
            }
            Err(error) => self.lose(inode, pages, &error),
        }
        self.pages.made(inode, &made);
        self.leases.changed_here(&[inode]);
    }

    /// Writes bytes that the kernel also has in its pages.
    fn write_through(&self, file: &File, offset: u64, bytes: &[u8], unique: u64) -> Result<Written> {
        let inode = file.inode();
        let range = range_of(offset, bytes.len());
        let (request, keeps) = self.pages.begin_through(inode, range);
        // Without pages there is no need for a lease on them: small files are written without, and one that grows out of its
        // inode has nothing to drop first.
        let written = self.reserve_up_to(file, offset, FirstPage::Locked).and_then(|()| {
            if keeps { file.write_through(bytes, offset) } else { file.write_at(bytes, offset) }
        });
        self.note_end(file, range, &request, &written);
        let written = written?;
        let suspect = self.pages.wrote_through(inode, file.layout(), range, (unique, &request));
        Ok(Written { bytes: written, suspect, request: Some(request) })
    }

    /// So much of a write is done. Programs' stores there through mappings must not be lost with the part that fails.
    fn note_end(&self, file: &File, range: ByteRange, request: &Request, written: &Result<usize>) {
        let (inode, end) =
            (file.inode(), range.start + written.as_ref().map_or(0, |written| *written as u64));
        if end >= range.end {
            return;
        }
        for left in self.pages.fail_through(inode, request, end) {
            self.write_pages_back(file, left.range(), [(left.offset, &left.bytes[..])].into_iter());
        }
        // The answer may have to wait for the kernel's pages, and their drop for write-backs of these pages.
        self.pages.left_out_is_written(inode, request);
    }

    /// Bytes for the kernel's pages, in strict mode. Programs may store into those of a file that is open for
    /// writing here; an open for writing drops all others.
    fn read_pages_strictly(
        &self,
        file: &File,
        buffer: &mut [u8],
        range: ByteRange,
        unique: u64,
    ) -> Result<KeptRead> {
        let inode = file.inode();
        let unique = self.handles.is_written_here(inode).then_some(unique);
        let reading = self.pages.begin_read(inode, file.layout(), range, unique);
        let on_turn = self.on_turn(&reading, buffer.len() as u64 == range.length());
        if !self.may_be_stored_into(file) {
            self.versions.note_bare_pages(inode);
        }
        // Either an open for writing has seen this read, or it is seen here.
        let own = self.may_be_stored_into(file);
        let take = own && self.handles.may_store_into_holes(inode, range.end);
        let bytes = file.read_strictly(buffer, range.start, (own, take), &on_turn)?;
        Ok(KeptRead { bytes, repeated: false })
    }

    /// Waits until all clients see what the kernel has written back of a file.
    pub(crate) fn await_published(&self, inode: InodeId) -> Result<()> {
        await_published(&self.pool, &self.pages, inode)
    }

    /// What programs have stored is lost: programs that publish or read get an error, and it is logged.
    fn lose(&self, inode: InodeId, range: ByteRange, error: &Error) {
        self.write_errors.note(inode, error);
        // A file that is gone has lost nothing, and has no reader.
        if error.kind() == ErrorKind::NotFound {
            return;
        }
        if let Some(said) = self.lost_stores.note(inode, range, error) {
            eprintln!("ramlace: {said}");
        }
    }

    /// Clears set-id bits of a file that this user is about to change by a descriptor. Whether the group's
    /// bit stays depends on the user's groups, so on a mount for several users the home is sent which user it
    /// is. `holding` tells what the kernel holds meanwhile, until that is dropped.
    pub(crate) fn drop_set_id<T>(
        &self,
        file: &File,
        caller: Caller,
        holding: impl FnOnce() -> T,
    ) -> Result<()> {
        if self.handles.has_set_id(file.inode()) {
            let _held = holding();
            return self.clear_set_id(file, caller);
        }
        // A home knows of its only user's session who writes, and clears them by itself.
        let may_have_some = self.handles.is_set_id_doubted(file.inode())
            || (self.for_users && self.handles.is_set_id_outdated(file.inode()));
        if !may_have_some {
            return Ok(());
        }
        let _held = holding();
        match self.clear_set_id(file, caller) {
            // A write into lanes needs no home, and it had none when its home was last heard.
            Err(error) if matches!(error.kind(), ErrorKind::HostDown | ErrorKind::TimedOut) => {
                self.handles.asked_for_set_id_in_vain(file.inode());
                Ok(())
            }
            cleared => cleared,
        }
    }

    /// The same, whatever is known of the file.
    pub(crate) fn clear_set_id(&self, file: &File, caller: Caller) -> Result<()> {
        let since = self.handles.now();
        let dropped = match self.for_users {
            true => acting_for(credentials(caller, &self.porter)?, || file.drop_set_id()),
            false => file.drop_set_id(),
        };
        self.handles.learn(&dropped?, since);
        self.leases.changed_here(&[file.inode()]);
        Ok(())
    }

    /// `fsync`, `msync` and `close`: the kernel has written its pages back; waits until all clients see them,
    /// and reports the time to the home.
    pub(crate) fn publish(&self, number: u64) -> Result<()> {
        let open = self.handles.get(number)?;
        open.finish_open(&self.versions, &self.handles);
        if open.passthrough {
            self.passthrough.publish_all(open.file.inode())?;
        }
        self.await_published(open.file.inode())?;
        match open.file.sync() {
            // The file was removed: there is no time to report any more.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
        self.write_errors.tell(open.file.inode(), &open.errors_reported)
    }

    /// `lseek` for data or for a hole. What programs have stored into pages of this kernel may still lie in
    /// holes.
    pub(crate) fn seek(&self, inode: InodeId, number: u64, offset: u64, whence: u32, reply: Reply) {
        let sought = match whence as i32 {
            libc::SEEK_DATA => Ok(Sought::Data),
            libc::SEEK_HOLE => Ok(Sought::Hole),
            _ => Err(Error::new(ErrorKind::Invalid, format!("{whence} is neither SEEK_DATA nor SEEK_HOLE"))),
        };
        let (open, sought) = match self.handles.get(number).and_then(|open| Ok((open, sought?))) {
            Ok(asked) => asked,
            Err(error) => {
                reply.error(error.errno());
                return;
            }
        };
        open.finish_open(&self.versions, &self.handles);
        let passthrough = open.passthrough;
        let seek = move |written: Result<()>| {
            match written.and_then(|()| open.file.seek(offset, sought)) {
                Ok(found) => reply.seeked(found),
                Err(error) => reply.error(error.errno()),
            };
        };
        if self.handles.is_written_here(inode) && !passthrough {
            self.refresher.after_writing_back(inode, Box::new(seek));
        } else {
            seek(Ok(()));
        }
    }

    pub(crate) fn allocate(
        &self,
        inode: InodeId,
        number: u64,
        offset: u64,
        length: u64,
        mode: u32,
        caller: Caller,
    ) -> Result<()> {
        let open = self.handles.get(number)?;
        // The kernel does not set the flag for this call.
        if caller.uid != 0 {
            self.drop_set_id(&open.file, caller, || ())?;
        }
        let range = ByteRange { start: offset, end: offset.saturating_add(length) };
        const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH_AND_KEEP: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
        const ZERO_AND_KEEP: u32 = ZERO | KEEP;
        if mode & !KEEP != 0 {
            self.handles.make_hole(inode, offset);
        }
        let allocated = match mode {
            0 => open.file.reserve(range, false),
            KEEP => open.file.reserve(range, true),
            PUNCH_AND_KEEP => open.file.punch(range),
            ZERO => open.file.zero(range, false),
            ZERO_AND_KEEP => open.file.zero(range, true),
            _ => Err(unsupported("this mode of fallocate")),
        };
        if mode & !KEEP != 0 && allocated.is_ok() {
            self.lost_stores.end(inode, range);
        }
        self.leases.changed_here(&[inode]);
        allocated
    }
}

/// Waits until all clients see what the kernel has written back of a file.
pub(crate) fn await_published(pool: &Pool, pages: &Pages, inode: InodeId) -> Result<()> {
    let made = pages.unpublished(inode);
    made.iter().try_for_each(|(server, recall)| pool.wait_published(server, recall))?;
    pages.published(inode, &made);
    Ok(())
}

fn range_of(offset: u64, length: usize) -> ByteRange {
    ByteRange { start: offset, end: offset.saturating_add(length as u64) }
}

/// The kernel reads ahead behind the end, because it does not know yet that another mount has truncated the file. It takes the
/// place of such an answer for the file's end, and of several that come out of order the wrong one: a program would read zeros
/// up to there. After an error it asks again, page by page.
fn check_meets_file(range: ByteRange, bytes: usize) -> Result<()> {
    if bytes == 0 && range.length() > rustix::param::page_size() as u64 {
        return Err(Error::new(ErrorKind::Stale, "read-ahead behind the end of the file"));
    }
    Ok(())
}

/// The pages of a read that lie behind the last one with bytes of the file. The kernel fills them with zeros, and may
/// keep them if it does not know yet that the file ends before.
fn behind_last_page(range: ByteRange, bytes: usize) -> ByteRange {
    let end = (range.start + bytes as u64).next_multiple_of(rustix::param::page_size() as u64);
    ByteRange { start: end.min(range.end), end: range.end }
}

/// Whether one of these pages contains only zeros: it may have no memory.
fn has_empty_page(bytes: &[u8]) -> bool {
    bytes.chunks(rustix::param::page_size()).any(|page| page.iter().all(|byte| *byte == 0))
}

/// Writes pages back. A page does not know of a truncation elsewhere and must not make the file longer again.
/// The kernel takes any success for all of it, so a pool that becomes full in the middle must be an error.
fn write_back(file: &File, offset: u64, bytes: &[u8], made: &mut RecallsMade) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_back(&bytes[done..], offset + done as u64, made)? {
            0 => return Err(Error::new(ErrorKind::NoSpace, "the pool filled up in the middle of a page")),
            written => done += written,
        }
    }
    Ok(())
}
