//! Link arguments of the shared library: its SONAME, and that it is never unmapped.

fn main() {
    // The SONAME carries the ABI's major version; CMake installs the file under the same name.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-soname,libkvhints.so.0");
    // Threads and thread-local destructors of the library may outlive a dlclose.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
