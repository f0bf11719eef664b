//! What libfabric has for its providers, as far as it can be found: the provider is not linked
//! with it, so that one binary serves each version, in each way that MPI brings its own.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::abi::info::fi_provider;

/// `FI_PARAM_STRING`.
const PARAM_STRING: c_int = 0;

/// `FI_LOG_CORE`.
const LOG_CORE: c_int = 0;

/// `enum fi_log_level`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    Warn = 0,
    Info = 2,
    Debug = 3,
}

type Log = unsafe extern "C" fn(
    *const fi_provider,
    c_int,
    c_int,
    *const c_char,
    c_int,
    *const c_char,
    ...
);
type LogEnabled = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
type ParamDefine =
    unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;
type ParamGet = unsafe extern "C" fn(*const fi_provider, *const c_char, *mut c_void) -> c_int;

struct Symbols {
    log: Option<Log>,
    log_enabled: Option<LogEnabled>,
    param_define: Option<ParamDefine>,
    param_get: Option<ParamGet>,
}

fn symbols() -> &'static Symbols {
    static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
    SYMBOLS.get_or_init(|| {
        // In the global scope; else, where a component of MPI has brought it along, by its name.
        // SAFETY: the name ends with a 0, and nothing is loaded that is not there.
        let library = unsafe {
            libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD)
        };
        let find = |name: &CStr| {
            [libc::RTLD_DEFAULT, library].into_iter().enumerate().find_map(|(number, scope)| {
                if number > 0 && scope.is_null() {
                    return None;
                }
                // SAFETY: a scope that there is, and a name that ends with a 0.
                let symbol = unsafe { libc::dlsym(scope, name.as_ptr()) };
                (!symbol.is_null()).then_some(symbol)
            })
        };
        // SAFETY: functions that libfabric exports since 1.0, of these types.
        unsafe {
            Symbols {
                log: find(c"fi_log").map(|it| std::mem::transmute::<*mut c_void, Log>(it)),
                log_enabled: find(c"fi_log_enabled")
                    .map(|it| std::mem::transmute::<*mut c_void, LogEnabled>(it)),
                param_define: find(c"fi_param_define")
                    .map(|it| std::mem::transmute::<*mut c_void, ParamDefine>(it)),
                param_get: find(c"fi_param_get")
                    .map(|it| std::mem::transmute::<*mut c_void, ParamGet>(it)),
            }
        }
    })
}

/// Whether libfabric would print a line of this level.
pub(crate) fn is_logged(level: Level) -> bool {
    // SAFETY: the provider is static.
    symbols()
        .log_enabled
        .is_some_and(|enabled| unsafe { enabled(crate::provider(), level as c_int, LOG_CORE) } != 0)
}

/// Prints a line; `false` when libfabric is not to be found or does not print it.
pub(crate) fn log(level: Level, place: &str, text: &str) -> bool {
    let Some(log) = symbols().log.filter(|_| is_logged(level)) else { return false };
    let c_text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
    let (place, text) = (c_text(place), c_text(text));
    // SAFETY: as `fi_log` wants it: texts end with a 0, and the format takes one text.
    unsafe {
        log(
            crate::provider(),
            level as c_int,
            LOG_CORE,
            place.as_ptr(),
            0,
            c"%s\n".as_ptr(),
            text.as_ptr(),
        );
    }
    true
}

/// Makes `FI_RINGRAIL_<name>` known to `fi_info -e`.
pub(crate) fn define(name: &str, help: &str) {
    let (Some(define), Ok(name), Ok(help)) =
        (symbols().param_define, CString::new(name), CString::new(help))
    else {
        return;
    };
    // SAFETY: as `fi_param_define` wants it: it copies the texts, and the format takes one.
    let answer = unsafe {
        define(crate::provider(), name.as_ptr(), PARAM_STRING, c"%s".as_ptr(), help.as_ptr())
    };
    if answer != 0 {
        tracing::debug!(?name, answer, "libfabric does not take a parameter");
    }
}

/// Returns the user's value of `FI_RINGRAIL_<name>`: from the environment, or from another source
/// of libfabric.
pub(crate) fn value(name: &str) -> Option<String> {
    if let (Some(get), Ok(c_name)) = (symbols().param_get, CString::new(name)) {
        let mut text: *const c_char = std::ptr::null();
        let into: *mut c_void = (&raw mut text).cast();
        // SAFETY: as `fi_param_get` wants it: a text is written that libfabric keeps.
        let answer = unsafe { get(crate::provider(), c_name.as_ptr(), into) };
        if answer == 0 && !text.is_null() {
            // SAFETY: it ends with a 0.
            return Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        }
    }
    std::env::var(format!("FI_RINGRAIL_{}", name.to_ascii_uppercase())).ok()
}
