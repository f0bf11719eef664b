//! What a call ends with: a code, and a text for the thread that made it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ringrail::Error;
use ringrail::bootstrap::BootstrapError;

use crate::codes::{
    ROWS, RR_EBOOTSTRAP, RR_EHANDLE, RR_EINVAL, RR_EPANIC, RR_ETHREAD, RR_ETRUNCATED, code_of,
};

/// Why a call failed.
pub(crate) enum Fault {
    Engine(Error),
    Bootstrap(BootstrapError),
    /// Found at the border.
    Here(c_int, Cow<'static, str>),
}

impl Fault {
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Here(RR_EINVAL, text.into())
    }

    pub(crate) fn handle(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Here(RR_EHANDLE, text.into())
    }

    pub(crate) fn thread(what: &str) -> Self {
        let text = format!("this {what} belongs to the thread that opened its endpoint (RR_OWNED)");
        Self::Here(RR_ETHREAD, text.into())
    }

    pub(crate) fn too_short(needed: usize, given: usize) -> Self {
        let text = format!("{needed} bytes are needed, {given} were given");
        Self::Here(RR_ETRUNCATED, text.into())
    }

    fn code(&self) -> c_int {
        match self {
            Self::Engine(error) => code_of(error.kind()),
            Self::Bootstrap(_) => RR_EBOOTSTRAP,
            Self::Here(code, _) => *code,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Engine(error) => error.to_string(),
            Self::Bootstrap(error) => error.to_string(),
            Self::Here(_, text) => text.to_string(),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<BootstrapError> for Fault {
    fn from(error: BootstrapError) -> Self {
        Self::Bootstrap(error)
    }
}

thread_local! {
    /// Kept as it is: a text is made only on request, since a refused post is no
    /// rare thing.
    static LAST: RefCell<Option<Fault>> = const { RefCell::new(None) };
    /// The text that was asked for last.
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

fn remember(fault: Fault) -> c_int {
    let code = fault.code();
    // In a thread that is ending it cannot be read any more.
    let _ = LAST.try_with(|last| last.replace(Some(fault)));
    code
}

/// Makes a call: its fault is remembered, and a panic ends here.
#[inline]
pub(crate) fn guard(call: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(number)) => number,
        Ok(Err(fault)) => remember(fault),
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "a panic without a text".to_owned());
            if text == ringrail::INHERITED {
                return remember(Fault::Engine(Error::Misuse(text.into())));
            }
            let text = format!("a bug of ringrail, please report it: {text}");
            remember(Fault::Here(RR_EPANIC, text.into()))
        }
    }
}

/// As [`guard`], of a call that gives nothing.
#[inline]
pub(crate) fn guard_unit(call: impl FnOnce() -> Result<(), Fault>) -> c_int {
    guard(|| call().map(|()| 0))
}

fn row(code: c_int) -> Option<&'static (c_int, &'static CStr, &'static CStr)> {
    ROWS.iter().find(|row| row.0 == code)
}

/// What an error code means, in a few words. It lives as long as the process. See rr_last_error
/// for what happened.
///
/// # Errors
///
/// None. A number that is no code is described as such, a positive one as success.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn rr_strerror(code: c_int) -> *const c_char {
    row(code.min(0)).map_or(c"no error code of this version", |row| row.2).as_ptr()
}

/// The name of an error code, such as "RR_EAGAIN". It lives as long as the process.
///
/// # Errors
///
/// None: of a number that is no code it is "?".
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub extern "C" fn rr_error_name(code: c_int) -> *const c_char {
    row(code.min(0)).map_or(c"?", |row| row.1).as_ptr()
}

/// What the last call that failed in this thread failed by: cause, whose fault, and cure. Empty
/// before the first failure. Calls that succeed leave it alone.
///
/// # Errors
///
/// None.
///
/// # Safety
///
/// The text is the library's. It is valid in this thread until this is called again here.
///
/// # Threads
///
/// Any; each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn rr_last_error() -> *const c_char {
    let text = || {
        let text = LAST.with_borrow(|last| last.as_ref().map(Fault::text).unwrap_or_default());
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        TEXT.with_borrow_mut(|kept| {
            *kept = text;
            kept.as_ptr()
        })
    };
    catch_unwind(text).unwrap_or(c"".as_ptr())
}

/// The Linux error number of rr_last_error: for RR_ESYSTEM what the
/// system gave. 0 before the first failure.
///
/// # Errors
///
/// None.
///
/// # Threads
///
/// Any; each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn rr_last_errno() -> c_int {
    let number = || {
        LAST.with_borrow(|last| match last {
            None => 0,
            Some(Fault::Engine(error)) => error.errno(),
            Some(Fault::Bootstrap(_)) => EIO,
            Some(Fault::Here(..)) => EINVAL,
        })
    };
    catch_unwind(number).unwrap_or(EIO)
}

const EIO: c_int = 5;
const EINVAL: c_int = 22;

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(text: *const c_char) -> String {
        // SAFETY: the texts of this room end with a zero byte, and live.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_a_code_and_a_text() {
        assert_eq!(guard(|| panic!("of the {}", "test")), RR_EPANIC);
        assert!(text_of(rr_last_error()).ends_with("of the test"));
        assert_eq!(guard_unit(|| Err(Fault::invalid("that was wrong"))), RR_EINVAL);
        assert_eq!(text_of(rr_last_error()), "that was wrong");
        assert_eq!(guard(|| Ok(3)), 3);
        assert_eq!(text_of(rr_last_error()), "that was wrong", "success leaves it alone");
        std::thread::spawn(|| assert_eq!(text_of(rr_last_error()), "")).join().unwrap();
    }

    #[test]
    fn codes_have_texts() {
        assert_eq!(text_of(rr_error_name(RR_EPANIC)), "RR_EPANIC");
        assert_eq!(text_of(rr_strerror(7)), "success");
        assert_eq!(text_of(rr_strerror(c_int::MIN)), "no error code of this version");
    }
}
