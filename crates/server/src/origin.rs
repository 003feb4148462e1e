//! What the pages of the requester's own kernel mean for a change of bytes: whether they have the new bytes, or are
//! recalled as those of others.

use ramlace_base::SessionId;
use ramlace_wire::chunk::WriteOrigin;
use ramlace_wire::inline::FirstPage;

/// The session from which nothing is recalled when it writes: its pages have the bytes, or it keeps none. [`SessionId::NONE`]
/// for bytes that go past its kernel's pages.
pub fn spared_by(session: SessionId, origin: WriteOrigin) -> SessionId {
    match origin {
        WriteOrigin::Beside => SessionId::NONE,
        WriteOrigin::Program | WriteOrigin::Through | WriteOrigin::Back => session,
    }
}

/// The session that a promotion does not wait for.
pub fn promoted_by(session: SessionId, first_page: FirstPage) -> SessionId {
    match first_page {
        FirstPage::Free => SessionId::NONE,
        FirstPage::Locked | FirstPage::Read => session,
    }
}

/// Whether the session's kernel has pages of what it writes.
pub fn gives_lease(origin: WriteOrigin) -> bool {
    matches!(origin, WriteOrigin::Through | WriteOrigin::Back)
}
