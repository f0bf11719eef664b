//! Texts by which other programs find what was installed.

use super::Plan;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The file for pkg-config.
pub(super) fn pkg_config(plan: &Plan, private: &[&str]) -> String {
    let (prefix, libdir) = (&plan.prefix, &plan.libdir);
    let private = private.join(" ");
    format!(
        "prefix={prefix}\nlibdir={libdir}\nincludedir=${{prefix}}/include\n\nName: ringrail\n\
         Description: Messages between HPC processes over commodity Ethernet NICs\n\
         Version: {VERSION}\nLibs: -L${{libdir}} -lringrail\nLibs.private: {private}\n\
         Cflags: -I${{includedir}}\n"
    )
}

/// What `find_package(ringrail)` of CMake reads: targets `ringrail::ringrail` and
/// `ringrail::static`. Paths are relative to this file, so that a tree may be moved or staged.
pub(super) fn cmake_config(plan: &Plan, soname: &str, shared: &str, private: &[&str]) -> String {
    let up = up_to_root(&format!("{}/cmake/ringrail", plan.libdir));
    let include = format!("{}/include", plan.prefix.trim_end_matches('/'));
    let private = private.iter().map(|flag| flag.trim_start_matches("-l"));
    let private = private.collect::<Vec<_>>().join(";");
    format!(
        "# ringrail {VERSION}: targets ringrail::ringrail (shared) and ringrail::static.\n\
         get_filename_component(_ringrail_root \"${{CMAKE_CURRENT_LIST_DIR}}/{up}\" ABSOLUTE)\n\
         set(_ringrail_lib \"${{_ringrail_root}}{libdir}\")\n\
         set(_ringrail_include \"${{_ringrail_root}}{include}\")\n\
         if(_ringrail_root STREQUAL \"/\")\n  \
           set(_ringrail_lib \"{libdir}\")\n  \
           set(_ringrail_include \"{include}\")\n\
         endif()\n\
         if(NOT TARGET ringrail::ringrail)\n  \
           add_library(ringrail::ringrail SHARED IMPORTED)\n  \
           set_target_properties(ringrail::ringrail PROPERTIES\n    \
             IMPORTED_LOCATION \"${{_ringrail_lib}}/{shared}\"\n    \
             IMPORTED_SONAME \"{soname}\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{_ringrail_include}}\")\n  \
           add_library(ringrail::static STATIC IMPORTED)\n  \
           set_target_properties(ringrail::static PROPERTIES\n    \
             IMPORTED_LOCATION \"${{_ringrail_lib}}/libringrail.a\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{_ringrail_include}}\"\n    \
             INTERFACE_LINK_LIBRARIES \"{private};gcc_s\")\n\
         endif()\n\
         unset(_ringrail_root)\n\
         unset(_ringrail_lib)\n\
         unset(_ringrail_include)\n\
         set(ringrail_FOUND TRUE)\n",
        libdir = plan.libdir,
    )
}

/// What CMake compares the wanted version with. Below 1.0 a minor version may change the
/// interface: one that was asked for has to be this one.
pub(super) fn cmake_version() -> String {
    let series = VERSION.rsplit_once('.').map_or(VERSION, |(series, _)| series);
    format!(
        "set(PACKAGE_VERSION \"{VERSION}\")\n\
         if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)\n  \
           set(PACKAGE_VERSION_COMPATIBLE FALSE)\n\
         elseif(PACKAGE_FIND_VERSION VERSION_LESS \"{series}\")\n  \
           set(PACKAGE_VERSION_COMPATIBLE FALSE)\n\
         else()\n  \
           set(PACKAGE_VERSION_COMPATIBLE TRUE)\n\
         endif()\n\
         if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)\n  \
           set(PACKAGE_VERSION_EXACT TRUE)\n\
         endif()\n"
    )
}

/// The unit of the daemon, which is where it was installed.
pub(super) fn unit(source: &str, daemon: &str) -> String {
    let lines = source.lines().map(|line| match line.strip_prefix("ExecStart=") {
        Some(command) => {
            let options =
                command.split_once(' ').map_or(String::new(), |(_, rest)| format!(" {rest}"));
            format!("ExecStart={daemon}{options}\n")
        }
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// `..` for each folder of a path.
fn up_to_root(folder: &str) -> String {
    let folders = folder.split('/').filter(|name| !name.is_empty());
    folders.map(|_| "..").collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_starts_what_was_installed() {
        let unit = unit("[Service]\nExecStart=/usr/sbin/a --nic b\nUser=root\n", "/opt/sbin/a");
        assert_eq!(unit, "[Service]\nExecStart=/opt/sbin/a --nic b\nUser=root\n");
    }

    #[test]
    fn a_path_is_left_by_as_many_steps_as_it_has_folders() {
        assert_eq!(up_to_root("/usr/lib/cmake/ringrail"), "../../../..");
    }
}
