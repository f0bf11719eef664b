//! How the provider is linked.

fn main() {
    // libfabric closes its providers when the process ends, while threads of the engine may still
    // run, and destructors of thread-locals: the code must stay where it is.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // libfabric opens providers with RTLD_NOW and passes over one that lacks a symbol: better to
    // find that out here.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo::rerun-if-changed=build.rs");
}
