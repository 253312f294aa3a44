//! Who may know whom. Reads the sources and fails when a room names a room that comes after it in
//! the flow of data, when a pure room reaches for the outside world, or when something is exported
//! or `unsafe` where it must not be.

use std::fs;
use std::path::{Path, PathBuf};

/// Each room and the rooms it may name. `sync` and `poison` are known to all and know none.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("sync", &[]),
    ("poison", &[]),
    ("clock", &[]),
    // Lines of the log have a time.
    ("telemetry", &["clock"]),
    // Stands in for the standard library while a model checker runs.
    ("sync", &[]),
    // Reading and writing little-endian numbers.
    ("wire", &[]),
    ("hint", &["sync", "poison", "wire"]),
    ("plan", &["hint", "poison"]),
    ("reuse", &["poison", "sync"]),
    ("broadcast", &["plan", "hint", "poison", "telemetry", "clock", "wire"]),
    ("transfer", &["plan", "reuse", "hint", "poison", "telemetry", "clock", "wire"]),
    (
        "capi",
        &["transfer", "broadcast", "plan", "reuse", "hint", "sync", "poison", "telemetry", "clock"],
    ),
    // Programs, which see the library from outside.
    ("bin", &["plan", "hint"]),
];

/// What the pure rooms (hint, plan, reuse) never touch outside their tests.
const IMPURE: &[&str] = &[
    "std::net::Tcp",
    "std::net::Udp",
    "ToSocketAddrs",
    "std::thread",
    "std::env",
    "std::fs",
    "std::process",
    "Instant",
    "SystemTime",
    "getrandom",
    "println!",
    "eprintln!",
    "dbg!",
];

/// Where `unsafe` may stand: the boundary, adapters' system code, and measured need.
const MAY_BE_UNSAFE: &[&str] = &[
    "src/capi/",
    // The profiler's protocol: a library opened at run time, and calls through its functions.
    "src/telemetry/nvtx/tool.rs",
    "src/hint/scan/lanes.rs",
    "src/hint/scan/grammar.rs",
    "src/reuse/sha_ni.rs",
    "src/broadcast/mpi/",
    "src/transfer/ucx/",
    "src/transfer/transport.rs",
    "src/transfer/memory.rs",
    // Where a thread runs.
    "src/transfer/cores.rs",
    // Stores past the caches.
    "src/transfer/copying.rs",
    // Each byte read once.
    "src/transfer/checked_copy.rs",
    // The library's own owner vouches for its pool's memory.
    "src/transfer/block_owner.rs",
    "src/transfer/loopback.rs",
    "src/transfer/device/cuda.rs",
    "src/transfer/device/driver.rs",
    "src/transfer/device/pool.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// One source file: its path below the root, its room, and its code lines (numbered from 1) without
/// comments and without the unit tests at the end.
struct Source {
    file: String,
    room: String,
    lines: Vec<(usize, String)>,
}

fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    rust_files(&root().join("src"), &mut files);
    assert!(files.len() > 10, "the sources were not found");
    files
        .iter()
        .map(|path| {
            let file = path.strip_prefix(root()).expect("below the root").display().to_string();
            let below_src = file.trim_start_matches("src/");
            let room = below_src.split('/').next().expect("a name").trim_end_matches(".rs");
            let text = fs::read_to_string(path).expect("source is readable");
            let lines = text
                .lines()
                .enumerate()
                .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
                .filter(|(_, line)| !line.trim_start().starts_with("//"))
                .map(|(index, line)| (index + 1, line.to_owned()))
                .collect();
            Source { room: room.to_owned(), lines, file }
        })
        .collect()
}

/// The rooms that a line names: `crate::room…` and `crate::{room…, …}`; the same with the library's
/// name, as programs write it.
fn rooms_named(line: &str) -> Vec<&'static str> {
    let is_room = |text: &str, room: &str| {
        text.strip_prefix(room)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    let after = |root| line.split(root).skip(1);
    let paths: Vec<&str> = after("crate::")
        .chain(after("kvhints::"))
        .flat_map(|path| match path.strip_prefix('{') {
            Some(list) => list.split([',', '{', '}', ' ']).collect(),
            None => vec![path],
        })
        .collect();
    let rooms = MAY_NAME.iter().map(|(room, _)| *room);
    rooms.filter(|room| paths.iter().any(|path| is_room(path, room))).collect()
}

#[test]
fn the_reader_sees_every_way_of_naming_a_room() {
    assert_eq!(rooms_named("use crate::hint::Snapshot;"), ["hint"]);
    assert_eq!(rooms_named("    crate::plan::Plan::new()"), ["plan"]);
    assert_eq!(rooms_named("use crate::{hint::Snapshot, reuse};"), ["hint", "reuse"]);
    assert_eq!(rooms_named("use kvhints::{plan::Plan, hint};"), ["hint", "plan"]);
    assert_eq!(rooms_named("use super::hints;"), Vec::<&str>::new());
    assert_eq!(rooms_named("use crate::hinted::X;"), Vec::<&str>::new());
}

#[test]
fn rooms_know_only_what_comes_before_them() {
    for Source { file, room, lines } in sources() {
        if room == "lib" {
            continue;
        }
        let (_, allowed) = MAY_NAME
            .iter()
            .find(|(known, _)| *known == room)
            .unwrap_or_else(|| panic!("{file}: the room `{room}` has no place in the layering"));
        for (number, line) in lines {
            for named in rooms_named(&line) {
                assert!(
                    named == room || allowed.contains(&named),
                    "{file}:{number}: `{room}` must not know `{named}`"
                );
            }
        }
    }
}

#[test]
fn pure_rooms_stay_pure() {
    for Source { file, room, lines } in sources() {
        if !["hint", "plan", "reuse"].contains(&room.as_str()) {
            continue;
        }
        for (number, line) in lines {
            for word in IMPURE {
                assert!(!line.contains(word), "{file}:{number}: a pure room must not use {word}");
            }
        }
    }
}

#[test]
fn only_the_c_boundary_exports_and_only_few_places_are_unsafe() {
    for Source { file, room, lines } in sources() {
        for (number, line) in lines {
            assert!(
                room == "capi" || !line.contains("no_mangle"),
                "{file}:{number}: exported symbols live in src/capi"
            );
            let is_unsafe =
                line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
            assert!(
                !is_unsafe || MAY_BE_UNSAFE.iter().any(|place| file.starts_with(place)),
                "{file}:{number}: `unsafe` has no place here (see MAY_BE_UNSAFE)"
            );
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for Source { file, .. } in sources() {
        let text = fs::read_to_string(root().join(&file)).expect("source is readable");
        assert!(text.starts_with("//! "), "{file}: the first line must say what the file is for");
    }
}
