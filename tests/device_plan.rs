//! How parts of blocks get from a device into staging and back: plans are carried out on host memory and
//! compared with what plain host code does. The kernels themselves run too, compiled for the host's
//! processors.

mod device_support;
#[allow(dead_code)] // Only numbers are drawn here.
mod random;

use std::ops::Range;

use device_support::{carry_out, interpret};
use kvhints::transfer::device::plan::{
    plan, Direction, Launch, Plan, COPY_FROM_BYTES, KERNELS, MAX_THREAD_BLOCKS, THREADS,
};
use kvhints::transfer::memory::{BlockMemory, BlockPool};
use random::SplitMix;

/// Room for tables: no test has longer ones.
const TABLE_BYTES: usize = 64 << 10;

/// Memory aligned to 16 bytes.
struct Memory(Vec<u128>, usize);

impl Memory {
    fn new(bytes: usize, fill: impl Fn(usize) -> u8) -> Self {
        let mut memory = Self(vec![0; bytes.div_ceil(16)], bytes);
        let base = memory.base();
        for index in 0..bytes {
            // SAFETY: inside.
            unsafe { base.add(index).write(fill(index)) };
        }
        memory
    }

    fn base(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    fn bytes(&mut self) -> &[u8] {
        let (base, len) = (self.base(), self.1);
        // SAFETY: as long as that.
        unsafe { std::slice::from_raw_parts(base, len) }
    }
}

/// Some blocks of a pool, and pieces of each.
struct Case {
    block_bytes: usize,
    block_count: usize,
    ids: Vec<i32>,
    pieces: Vec<Range<usize>>,
}

impl Case {
    fn part_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Pieces in ascending order with gaps or without, of blocks in any order.
    fn drawn(rng: &mut SplitMix) -> Self {
        let unit = [1, 2, 4, 12, 16, 48, 256, 1024][rng.below(8)];
        let units = 1 + rng.below(24);
        let (block_bytes, block_count) = (unit * units, 1 + rng.below(12));
        let mut ids: Vec<i32> = (0..block_count as i32).collect();
        for index in (1..ids.len()).rev() {
            if rng.below(2) == 0 {
                ids.swap(index, rng.below(index + 1));
            }
        }
        ids.truncate(1 + rng.below(block_count));
        let mut pieces = Vec::new();
        let mut at = rng.below(2) * rng.below(units);
        while at < units && pieces.len() < 20 {
            let end = at + 1 + rng.below(units - at);
            pieces.push(at * unit..end * unit);
            at = end + rng.below(3);
        }
        if pieces.is_empty() {
            pieces.push(0..block_bytes);
        }
        Self { block_bytes, block_count, ids, pieces }
    }

    /// Carries the plan out both ways, and compares all memory with what host code makes of it.
    fn check(&self, table_bytes: usize, launched: Launched<'_>) -> Plan {
        let pool_bytes = self.block_bytes * self.block_count;
        let staging_bytes = self.part_bytes() * self.ids.len();
        let mut memory = Memory::new(pool_bytes, |index| (index * 7 + index / 251) as u8);
        let mut expected = Memory::new(pool_bytes, |index| (index * 7 + index / 251) as u8);
        // SAFETY: the memory outlives the pool.
        let reference =
            unsafe { BlockPool::new(expected.base(), self.block_bytes, self.block_count) }.unwrap();
        let base = memory.base() as u64;
        let blocks: Vec<u64> =
            self.ids.iter().map(|id| base + *id as u64 * self.block_bytes as u64).collect();
        let plan = plan(&blocks, self.block_bytes, &self.pieces, table_bytes).unwrap();

        // With a margin that nobody touches.
        let mut staging = Memory::new(staging_bytes + 32, |_| 0xaa);
        // SAFETY: blocks and staging are as long as the plan was told.
        unsafe { carry_out(Direction::Gather, &plan, staging.base(), launched) };
        let mut gathered = Vec::new();
        let is_gathered =
            self.ids.iter().all(|id| reference.gather(*id, &self.pieces, &mut gathered));
        assert!(is_gathered && staging.bytes()[..staging_bytes] == gathered[..]);
        assert!(staging.bytes()[staging_bytes..].iter().all(|byte| *byte == 0xaa));
        assert!(memory.bytes() == expected.bytes(), "nothing is written where it is only read");

        let mut staging = Memory::new(staging_bytes, |index| (index * 13 + 5) as u8);
        // SAFETY: as above.
        unsafe { carry_out(Direction::Scatter, &plan, staging.base(), launched) };
        let parts = staging.bytes().chunks_exact(self.part_bytes());
        assert!(parts.zip(&self.ids).all(|(part, id)| reference.scatter(*id, &self.pieces, part)));
        assert!(memory.bytes() == expected.bytes());
        plan
    }
}

type Launched<'a> = &'a dyn Fn(Direction, &Launch, *const u64, *mut u8);

fn interpreted(direction: Direction, launch: &Launch, table: *const u64, staging: *mut u8) {
    // SAFETY: called by `carry_out`, whose caller vouches for all of it.
    unsafe { interpret(direction, launch, table, staging) };
}

#[test]
fn plans_move_what_host_code_moves_with_kernels_and_without() {
    let mut rng = SplitMix(11);
    let mut kinds = [0, 0];
    for _ in 0..300 {
        let case = Case::drawn(&mut rng);
        assert!(matches!(case.check(0, &interpreted), Plan::Copies(_)), "there are no kernels");
        match case.check(TABLE_BYTES, &interpreted) {
            Plan::Copies(_) => kinds[0] += 1,
            Plan::Kernel(launch) => {
                kinds[1] += 1;
                assert!(launch.grid.0 * launch.grid.1 <= MAX_THREAD_BLOCKS);
                assert!(launch.grid.0 >= 1 && launch.grid.1 >= 1);
            }
        }
    }
    assert!(kinds.iter().all(|count| *count > 20), "both kinds are drawn: {kinds:?}");
}

#[test]
fn neighbours_and_long_pieces_are_copied_and_short_ones_are_one_launch() {
    let base = 1u64 << 40;
    let at = |slots: &[u64], bytes: u64| -> Vec<u64> {
        slots.iter().map(|slot| base + slot * bytes).collect()
    };
    let planned = |slots: &[u64], bytes: usize, pieces: &[Range<usize>]| {
        plan(&at(slots, bytes as u64), bytes, pieces, TABLE_BYTES).unwrap()
    };
    let copies = |plan: &Plan| match plan {
        Plan::Copies(copies) => copies.len(),
        Plan::Kernel(_) => 0,
    };
    let whole = |bytes| std::slice::from_ref(Box::leak(Box::new(0..bytes)));
    assert_eq!(copies(&planned(&[3, 4, 5, 6], 4096, whole(4096))), 1, "one run");
    let large = COPY_FROM_BYTES;
    assert_eq!(copies(&planned(&[3, 5, 7], large, whole(large))), 3);
    assert_eq!(copies(&planned(&[3, 5, 7], large - 16, whole(large - 16))), 0);
    let Plan::Kernel(launch) = planned(&[9, 2], 8192, &[0..1024, 4096..5120]) else {
        panic!("short pieces are moved by a kernel")
    };
    assert_eq!(
        launch.table,
        [base + 9 * 8192, base + 2 * 8192, 0, 1024, 0, 4096, 1024, 1024],
        "blocks, then first byte, bytes and place of each piece"
    );
    assert_eq!((launch.block_count, launch.piece_count, launch.part_bytes), (2, 2, 2048));
    assert_eq!((launch.word_bytes, launch.grid), (16, (4, 1)));
    // A table that has no room.
    let many: Vec<u64> = (0..100).map(|slot| base + slot * 64).collect();
    let fits = |table_bytes| plan(&many, 32, &[0..8, 16..24], table_bytes).unwrap();
    assert!(matches!(fits(106 * 8), Plan::Kernel(_)));
    assert!(matches!(fits(106 * 8 - 1), Plan::Copies(_)));
}

#[test]
fn words_divide_every_address_and_size() {
    let words = |block: u64, block_bytes, pieces: &[Range<usize>]| match plan(
        &[block, block + 2 * block_bytes as u64],
        block_bytes,
        pieces,
        TABLE_BYTES,
    ) {
        Some(Plan::Kernel(launch)) => launch.word_bytes,
        other => panic!("{other:?}"),
    };
    assert_eq!(words(4096, 64, &[0..16, 32..48]), 16);
    assert_eq!(words(4096, 64, &[0..16, 32..44]), 4);
    assert_eq!(words(4096, 64, &[0..16, 36..52]), 4);
    assert_eq!(words(4100, 64, &[0..16, 32..48]), 4);
    assert_eq!(words(4096, 64, &[0..16, 32..34]), 1);
    assert_eq!(words(4098, 64, &[0..16, 32..48]), 1);
    assert_eq!(words(4096, 70, &[0..16, 32..48]), 4, "blocks lie 140 bytes apart");
}

#[test]
fn what_cannot_be_has_no_plan() {
    let good = 0..8;
    let planned = |blocks: &[u64], pieces: &[Range<usize>]| plan(blocks, 64, pieces, TABLE_BYTES);
    assert!(planned(&[4096], std::slice::from_ref(&good)).is_some());
    #[allow(clippy::reversed_empty_ranges)] // What a fault could make.
    let pieces = [0..65, 64..65, 8..8, 9..8, 0..usize::MAX];
    for piece in pieces {
        assert!(planned(&[4096], &[good.clone(), piece.clone()]).is_none(), "{piece:?}");
    }
    assert!(planned(&[], std::slice::from_ref(&good)).is_none());
    assert!(planned(&[4096], &[]).is_none());
    assert!(planned(&[u64::MAX - 63], std::slice::from_ref(&good)).is_none());
}

#[test]
fn the_library_carries_these_kernels_with_these_arguments() {
    let text = kvhints::transfer::device::cuda::KERNELS_PTX;
    assert!(text.contains(".target sm_70"), "the oldest device that is served");
    assert_eq!(text.matches(".visible .entry ").count(), KERNELS.len());
    let launch = Launch {
        grid: (1, 1),
        table: Vec::new(),
        block_count: 0,
        piece_count: 0,
        part_bytes: 0,
        word_bytes: 1,
    };
    let given = launch.arguments(std::ptr::null(), std::ptr::null_mut()).len();
    for name in KERNELS {
        let start = text.find(&format!(".visible .entry {name}(")).expect(name);
        let parameters = text[start..].split(')').next().unwrap();
        assert_eq!(parameters.matches(".param").count(), given, "{name}");
        assert_eq!(parameters.matches(".param .u64").count(), given, "{name}");
    }
}

/// The kernels, as a C++ compiler makes them for the host's processors.
struct Compiled {
    library: *mut libc::c_void,
    run: unsafe extern "C" fn(u32, u32, u32, u32, *const u64),
}

impl Compiled {
    /// `None` when there is no compiler.
    fn new() -> Option<Self> {
        let compiler = ["c++", "g++", "clang++"].into_iter().find(|name| {
            let asked = std::process::Command::new(name).arg("--version").output();
            asked.is_ok_and(|output| output.status.success())
        })?;
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        let library = target.join(format!("kernels-{}.so", std::process::id()));
        let status = std::process::Command::new(compiler)
            .args(["-std=c++14", "-O1", "-fPIC", "-shared", "-x", "c++", "-I"])
            .arg(root.join("src/transfer/device"))
            .arg(root.join("tests/device_support/kernels_on_host.cpp"))
            .arg("-o")
            .arg(&library)
            .status()
            .unwrap();
        assert!(status.success(), "kernels.cu is C++ too");
        let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: a library without constructors, and a symbol with this signature.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let symbol = libc::dlsym(handle, c"run_kernel".as_ptr());
            assert!(!symbol.is_null());
            std::fs::remove_file(&library).unwrap();
            type Run = unsafe extern "C" fn(u32, u32, u32, u32, *const u64);
            Some(Self {
                library: handle,
                run: std::mem::transmute::<*mut libc::c_void, Run>(symbol),
            })
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: opened once, and nothing of it is used any more.
        unsafe { libc::dlclose(self.library) };
    }
}

#[test]
fn the_kernels_source_moves_the_same_bytes() {
    let Some(compiled) = Compiled::new() else {
        println!("SKIPPED the_kernels_source_moves_the_same_bytes: there is no C++ compiler");
        return;
    };
    let launched = |direction: Direction, launch: &Launch, table: *const u64, staging: *mut u8| {
        let arguments = launch.arguments(table, staging);
        // SAFETY: six numbers; what they lead to is as long as the launch says.
        unsafe {
            let (x, y) = launch.grid;
            (compiled.run)(direction as u32, x, y, THREADS, arguments.as_ptr());
        }
    };
    let mut rng = SplitMix(12);
    let mut words = [0; 17];
    for _ in 0..300 {
        if let Plan::Kernel(launch) = Case::drawn(&mut rng).check(TABLE_BYTES, &launched) {
            words[launch.word_bytes as usize] += 1;
        }
    }
    assert!([1, 4, 16].iter().all(|word| words[*word] > 20), "all widths are drawn: {words:?}");
}
