//! A UCX that the host loads itself: before this library, which then uses that very one, or after it.
//! Another release comes from the wheel that `scripts/ucx_versions.sh` fetches; a copy under other names,
//! as packages bundle it, is made here out of this machine's.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvhints::transfer::ucx::availability;
use ucx_sys::Ucx;

use crate::faults::bytes_that_arrive;
use crate::process::play as play_part;
use crate::ucx_support::ucx_is_here;

/// What UCX is made of, those first that others need.
const PARTS: [&str; 4] = ["ucm", "ucs", "uct", "ucp"];
/// Their names end so, and in a bundled copy so: as many bytes.
const ENDING: &str = ".so.0";
const BUNDLED_ENDING: &str = "-x.so";

#[test]
fn a_copy_that_the_host_loaded_is_the_one_that_is_used() {
    for (copy, search) in copies() {
        for visible in ["global", "local"] {
            let part = format!("copies before {visible} {}", copy.folder.display());
            play_part(&part, &search).is_silent();
        }
    }
}

#[test]
fn a_copy_that_the_host_loads_later_changes_nothing() {
    for (copy, search) in copies() {
        for visible in ["global", "local"] {
            let part = format!("copies after {visible} {}", copy.folder.display());
            play_part(&part, &search).is_silent();
        }
    }
}

/// A host that has loaded a piece of another release, and no more of it: the rest does not fit, which
/// is an error in words, or it does, and all works.
#[test]
fn a_piece_of_another_release_is_an_error_or_fits() {
    let (Some(system), Some(wheel)) = (system(), wheel()) else { return };
    for (pieces_of, search) in [(&wheel, &system), (&system, &wheel)] {
        for piece in PARTS {
            let part = format!("copies piece {piece} {}", pieces_of.display());
            let search = [("LD_LIBRARY_PATH", search.to_str().expect("a path"))];
            play_part(&part, &search).is_silent();
        }
    }
}

/// A folder with all parts of a UCX; one that was made here is removed when dropped.
struct Copy {
    folder: PathBuf,
    is_made_here: bool,
}

impl Drop for Copy {
    fn drop(&mut self) {
        if self.is_made_here {
            // What remains is in the build's folder, and nobody looks at it.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Copies for the host, and where the loader looks for this library's.
fn copies() -> Vec<(Copy, Vec<(&'static str, &'static str)>)> {
    let Some(system) = system() else { return Vec::new() };
    let mut found = vec![(bundled(&system), Vec::new())];
    if let Some(wheel) = wheel() {
        let search: &'static str = wheel.to_str().expect("a path").to_owned().leak();
        let through_the_wheel = || vec![("LD_LIBRARY_PATH", search)];
        let as_it_is = |folder: &Path| Copy { folder: folder.to_owned(), is_made_here: false };
        found.push((bundled(&wheel), Vec::new()));
        found.push((as_it_is(&wheel), Vec::new()));
        found.push((as_it_is(&system), through_the_wheel()));
        found.push((bundled(&system), through_the_wheel()));
    }
    found
}

/// Where this machine's UCX lies; `None`, and says so, where there is none.
fn system() -> Option<PathBuf> {
    if !ucx_is_here() {
        return None;
    }
    let file = mapped().into_iter().next().expect("UCX is loaded into this process");
    Some(file.parent().expect("a folder").to_owned())
}

/// The other release; `None`, and says so, where nobody fetched it.
fn wheel() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder");
    let folders = std::fs::read_dir(target).expect("the build's folder");
    let libraries = folders.filter_map(Result::ok).map(|entry| entry.path().join("libucx/lib"));
    let found = libraries.into_iter().find(|folder| folder.join("libucp.so.0").exists());
    if found.is_none() {
        let why = "another release of UCX is not here: scripts/ucx_versions.sh fetches one";
        writeln!(std::io::stdout().lock(), "\nSKIPPED: {why}").expect("somebody reads it");
    }
    found
}

/// The same files under other names, inside and outside.
fn bundled(from: &Path) -> Copy {
    static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("ucx-bundled-{}-{number}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the build's folder");
    for part in PARTS {
        let mut bytes = std::fs::read(from.join(format!("lib{part}{ENDING}"))).expect("a library");
        for other in PARTS {
            let [old, new] = [ENDING, BUNDLED_ENDING].map(|end| format!("lib{other}{end}"));
            replace(&mut bytes, &old, &new);
        }
        // Its modules would be those beside the original, which need that.
        let beside = from.file_name().and_then(|name| name.to_str()).expect("a folder");
        replace(&mut bytes, &format!("{beside}/ucx"), &format!("{beside}/xcu"));
        std::fs::write(folder.join(format!("lib{part}{BUNDLED_ENDING}")), bytes).expect("room");
    }
    Copy { folder, is_made_here: true }
}

fn replace(bytes: &mut [u8], old: &str, new: &str) {
    assert_eq!(old.len(), new.len(), "everything else keeps its place");
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(old.len()).position(|here| here == old.as_bytes()) {
        at += found;
        bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
    }
}

/// The files of UCX that are in this process.
fn mapped() -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a Linux");
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).map(PathBuf::from);
    let is_ucp = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"libucp"))
    };
    paths.filter(is_ucp).collect()
}

/// Plays a host that has a UCX of its own: when, and which.
pub fn play(how: &str) {
    let words: Vec<&str> = how.splitn(3, ' ').collect();
    let [when, what, folder] = words[..] else { panic!("not said how: {how}") };
    let folder = Path::new(folder);
    match when {
        "before" => {
            let hosts = load(folder, what == "global").expect("the host's UCX");
            let version = uses(&hosts);
            bytes_that_arrive("all");
            assert_eq!(availability().expect("loaded").to_string(), version);
            assert_eq!(mapped().len(), 1, "one copy is enough: {:?}", mapped());
            uses(&hosts);
            bytes_that_arrive("tcp");
        }
        "after" => {
            bytes_that_arrive("all");
            let version = availability().expect("loaded");
            let last = file_of(folder, "ucp");
            let is_bundled = last.to_string_lossy().ends_with(BUNDLED_ENDING);
            // Where what it needs has the names of what is there, the loader takes that, or refuses to.
            let is_loaded = match is_bundled {
                true => load(folder, what == "global").is_some(),
                false => open_file(&last, what == "global"),
            };
            assert!(is_loaded || !is_bundled, "the host's UCX");
            if is_loaded {
                uses(&last);
            }
            bytes_that_arrive("tcp");
            assert_eq!(availability().expect("loaded"), version);
            if what == "global" {
                // UCX leaves calls of its modules to be bound when they are made, the last ones at the
                // process's end: then to the copy that is visible to all, another release perhaps.
                // Nothing that is loaded once can rule that out; see the module `ucx`.
                // SAFETY: ends this process, whose work is done.
                unsafe { libc::_exit(0) };
            }
        }
        "piece" => {
            // What it needs itself may be found in the other release only: the host's own affair.
            open_file(&file_of(folder, what), true);
            match availability() {
                Ok(_) => bytes_that_arrive("all"),
                Err(error) => assert!(error.to_string().contains("libucp.so.0"), "{error}"),
            }
        }
        other => panic!("not known when: {other}"),
    }
}

fn file_of(folder: &Path, part: &str) -> PathBuf {
    let files = [ENDING, BUNDLED_ENDING].map(|ending| folder.join(format!("lib{part}{ending}")));
    files.into_iter().find(|file| file.exists()).expect("a library in that folder")
}

/// Loads all parts, each from its own place; the last one's file, or `None` where they do not fit.
fn load(folder: &Path, is_global: bool) -> Option<PathBuf> {
    let files = PARTS.map(|part| file_of(folder, part));
    let mut is_loaded = false;
    for file in &files {
        is_loaded = open_file(file, is_global);
    }
    let [.., last] = files;
    is_loaded.then_some(last)
}

/// Whether it is loaded, for good.
fn open_file(file: &Path, is_global: bool) -> bool {
    let name = CString::new(file.as_os_str().as_bytes()).expect("a path");
    // Their parts need each other both ways: what is missing may come with the next one.
    let is_last = file.to_string_lossy().contains("libucp");
    let visible = if is_global { libc::RTLD_GLOBAL } else { libc::RTLD_LOCAL };
    let when = if is_last { libc::RTLD_NOW } else { libc::RTLD_LAZY };
    // SAFETY: UCX's own constructors run, as in every host that uses it.
    !unsafe { libc::dlopen(name.as_ptr(), when | visible) }.is_null()
}

/// What a host does with its own UCX, from beginning to end; its version.
fn uses(loaded: &Path) -> String {
    // SAFETY: a UCX that is loaded already; the functions have the types that its headers declare.
    let ucx = unsafe { Ucx::new(loaded) }.expect("a UCX");
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: three writable numbers.
    unsafe { ucx.ucp_get_version(&mut major, &mut minor, &mut release) };
    let mut config = std::ptr::null_mut();
    let mut context = std::ptr::null_mut();
    let mut worker = std::ptr::null_mut();
    // SAFETY: each call gets what those before it made, and structs that live during the call; all-zero
    // bytes are valid where nothing is masked.
    unsafe {
        let none = std::ptr::null();
        assert_eq!(ucx.ucp_config_read(none, none, &mut config), ucx_sys::UCS_OK);
        let mut params: ucx_sys::ucp_params_t = std::mem::zeroed();
        params.field_mask = u64::from(ucx_sys::UCP_PARAM_FIELD_FEATURES);
        params.features = u64::from(ucx_sys::UCP_FEATURE_AM);
        let api = minor.min(ucx_sys::UCP_API_MINOR);
        let status = ucx.ucp_init_version(major, api, &params, config, &mut context);
        assert_eq!(status, ucx_sys::UCS_OK);
        ucx.ucp_config_release(config);
        let params: ucx_sys::ucp_worker_params_t = std::mem::zeroed();
        assert_eq!(ucx.ucp_worker_create(context, &params, &mut worker), ucx_sys::UCS_OK);
        ucx.ucp_worker_progress(worker);
        ucx.ucp_worker_destroy(worker);
        ucx.ucp_cleanup(context);
    }
    format!("{major}.{minor}.{release}")
}
