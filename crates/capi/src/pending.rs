//! Publishing and refreshing beside the program.

use std::ffi::c_int;

use ramlace_client::Pending;

use crate::answers::done;
use crate::failure::guard;
use crate::open::open_file;
use crate::pass::Out;
use crate::table::{self, Kept};
use crate::types::{ramlace_file, ramlace_request};
use crate::views::{all_or_some, is_mapped, publish, refresh};

struct Request(Pending);

impl Kept for Request {
    const NAME: &'static str = "request";
}

/// Begins what ramlace_publish does, and returns at once: what was stored into these bytes before the call is published when
/// ramlace_wait is back, what is stored meanwhile perhaps. The file may be closed then, and its views given back
/// (ramlace_unmap).
///
/// Returns NULL and sets errno: EAGAIN where 64 requests of the process are under way; EBADF, EINVAL as ramlace_publish.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_ipublish(
    file: *mut ramlace_file,
    offset: i64,
    length: i64,
) -> *mut ramlace_request {
    guard(|| {
        let (open, range) = (open_file(file)?, all_or_some(offset, length)?);
        // The program may give a view back meanwhile: what it has stored there is published all the same.
        let copies = open.copies.all()?;
        let is_mapped = is_mapped(&open, &copies);
        Ok(table::keep(Request(Pending::begin(move || publish(&open, range, is_mapped, &copies))?)))
    })
}

/// Begins what ramlace_refresh does, and returns at once: what others had published before the call is there when ramlace_wait is
/// back, and may come piece by piece. What the program stores meanwhile stays. Otherwise as ramlace_ipublish.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_irefresh(
    file: *mut ramlace_file,
    offset: i64,
    length: i64,
) -> *mut ramlace_request {
    guard(|| {
        let (open, range) = (open_file(file)?, all_or_some(offset, length)?);
        Ok(table::keep(Request(Pending::begin(move || refresh(&open, range))?)))
    })
}

/// Whether a request is over; ramlace_wait then returns at once. *over is set to 1, or to 0. Returns 0, or -1 and sets
/// errno: EBADF no request, or one of the process that this one was forked from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_test(request: *mut ramlace_request, over: Out<c_int>) -> c_int {
    done(|| {
        let request = table::find::<Request, _>(request)?;
        over.put("int", || Ok(c_int::from(request.0.poll()?.is_some())))
    })
}

/// Waits until a request is over, and ends it: the handle is invalid afterwards, whatever is returned. A process that ends
/// waits for none.
///
/// Returns 0, or -1 and sets errno as ramlace_publish or ramlace_refresh does; EBADF as ramlace_test.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ramlace_wait(request: *mut ramlace_request) -> c_int {
    done(|| table::take::<Request, _>(request)?.0.wait())
}
