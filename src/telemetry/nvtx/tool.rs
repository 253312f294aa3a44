//! The profiler's side: NVTX version 3, as its protocol is published (github.com/NVIDIA/NVTX).
//!
//! A program that speaks NVTX keeps a slot for each function of the protocol, all empty. A profiler
//! puts the path of a library of its own into the environment variable `NVTX_INJECTION64_PATH`; the
//! program opens it and calls its `InitializeInjectionNvtx2` with a function that hands out the
//! tables of slots, and the profiler fills those that it wants. A call goes through the slot, or
//! nowhere where it is empty. So nothing is linked, and no profiler means no cost but a look.
//!
//! Written here because the crate for it (`nvtx-sys`) compiles C and runs bindgen at build time,
//! which the library's build does without.
//!
//! Guards: slots are process-wide, as the protocol has it; a profiler that cannot be opened or
//! declines leaves them empty. The library is never unmapped, so neither are they.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Once;

use super::Step;

/// The variable with the path of the profiler's library.
const INJECTION_VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// What the profiler's library is asked for.
const INITIALIZE: &CStr = c"InitializeInjectionNvtx2";
const DOMAIN: &CStr = c"kvhints";
const NVTX_VERSION: u16 = 3;

/// The slots of one module: a table of pointers to them, indexed by function, from 1. `SLOTS` counts
/// the unused slot 0. The protocol's tables have a NULL at each end.
struct Module<const SLOTS: usize> {
    slots: [AtomicPtr<c_void>; SLOTS],
}

impl<const SLOTS: usize> Module<SLOTS> {
    const fn new() -> Self {
        Self { slots: [const { AtomicPtr::new(null_mut()) }; SLOTS] }
    }

    /// The function in a slot; NULL where there is none. Relaxed is enough: a thread that sees the
    /// pointer late misses a range, and what it points at was there before.
    #[inline]
    fn function(&self, index: usize) -> *mut c_void {
        self.slots[index].load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.store(null_mut(), Ordering::Relaxed));
    }
}

/// Pointers to slots, as the profiler gets them.
#[repr(transparent)]
struct Table<const LEN: usize>([*const AtomicPtr<c_void>; LEN]);

// SAFETY: the pointers lead to statics that are only used atomically by this side.
unsafe impl<const LEN: usize> Sync for Table<LEN> {}

macro_rules! module {
    ($slots:ident, $table:ident, $functions:expr) => {
        static $slots: Module<{ $functions + 1 }> = Module::new();
        static $table: Table<{ $functions + 2 }> = {
            let mut table = [const { std::ptr::null() }; $functions + 2];
            let mut index = 1;
            while index <= $functions {
                table[index] = &raw const $slots.slots[index];
                index += 1;
            }
            Table(table)
        };
    };
}

// Numbers of functions, by the protocol. Only CORE and CORE2 are called here; profilers may ask for
// all.
module!(CORE, CORE_TABLE, 15);
module!(CUDA, CUDA_TABLE, 8);
module!(OPENCL, OPENCL_TABLE, 14);
module!(CUDART, CUDART_TABLE, 6);
module!(CORE2, CORE2_TABLE, 15);
module!(SYNC, SYNC_TABLE, 6);

/// In CORE: void (uint32_t thread_id, const char *name).
const NAME_OS_THREAD: usize = 14;
/// In CORE2: uint64_t (domain, const attributes *).
const RANGE_START: usize = 2;
/// In CORE2: void (domain, uint64_t range).
const RANGE_END: usize = 3;
/// In CORE2: int (domain, const attributes *).
const RANGE_PUSH: usize = 4;
/// In CORE2: int (domain).
const RANGE_POP: usize = 5;
/// In CORE2: void (domain, uint32_t category, const char *name).
const NAME_CATEGORY: usize = 8;
/// In CORE2: domain (const char *name).
const DOMAIN_CREATE: usize = 12;

type Domain = *mut c_void;
type NameOsThread = unsafe extern "C" fn(u32, *const c_char);
type RangeStart = unsafe extern "C" fn(Domain, *const Attributes) -> u64;
type RangeEnd = unsafe extern "C" fn(Domain, u64);
type RangePush = unsafe extern "C" fn(Domain, *const Attributes) -> c_int;
type RangePop = unsafe extern "C" fn(Domain) -> c_int;
type NameCategory = unsafe extern "C" fn(Domain, u32, *const c_char);
type DomainCreate = unsafe extern "C" fn(*const c_char) -> Domain;
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(GetExportTable) -> c_int;

/// What the profiler calls the domain; NULL until there is one that wants ranges.
static DOMAIN_HANDLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The attributes of a range.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

const PAYLOAD_UNSIGNED_64: i32 = 1;
const MESSAGE_ASCII: i32 = 1;
const _: () = assert!(size_of::<Attributes>() == 48);

impl Attributes {
    fn new(step: Step, message: &CStr, bytes: u64) -> Self {
        Self {
            version: NVTX_VERSION,
            size: size_of::<Self>() as u16,
            category: step as u32,
            color_type: 0,
            color: 0,
            payload_type: PAYLOAD_UNSIGNED_64,
            reserved: 0,
            payload: bytes,
            message_type: MESSAGE_ASCII,
            message: message.as_ptr(),
        }
    }
}

/// Table 1: where the slots are.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    get_module_function_table:
        unsafe extern "C" fn(u32, *mut *const *const AtomicPtr<c_void>, *mut c_uint) -> c_int,
}

/// Table 3: which NVTX this is.
#[repr(C)]
struct VersionInfo {
    struct_size: usize,
    version: u32,
    reserved: u32,
    set_injection_version: unsafe extern "C" fn(u32),
}

static CALLBACKS: Callbacks =
    Callbacks { struct_size: size_of::<Callbacks>(), get_module_function_table };

static VERSION_INFO: VersionInfo = VersionInfo {
    struct_size: size_of::<VersionInfo>(),
    version: NVTX_VERSION as u32,
    reserved: 0,
    set_injection_version,
};

/// The profiler asks for a table by number; NULL for one that there is not.
unsafe extern "C" fn get_export_table(number: u32) -> *const c_void {
    match number {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

/// The profiler asks for a module's slots; 1 where there are such, else 0.
unsafe extern "C" fn get_module_function_table(
    module: u32,
    table_out: *mut *const *const AtomicPtr<c_void>,
    size_out: *mut c_uint,
) -> c_int {
    let table: &[*const AtomicPtr<c_void>] = match module {
        1 => &CORE_TABLE.0,
        2 => &CUDA_TABLE.0,
        3 => &OPENCL_TABLE.0,
        4 => &CUDART_TABLE.0,
        5 => &CORE2_TABLE.0,
        6 => &SYNC_TABLE.0,
        _ => return 0,
    };
    // SAFETY: by the protocol each is NULL or writable.
    unsafe {
        if !size_out.is_null() {
            // Without the NULL at the end.
            *size_out = (table.len() - 1) as c_uint;
        }
        if !table_out.is_null() {
            *table_out = table.as_ptr();
        }
    }
    1
}

/// By the protocol nothing is done with it.
unsafe extern "C" fn set_injection_version(_version: u32) {}

/// Opens the profiler's library where there is one; once.
pub(super) fn attach() {
    static ATTACH: Once = Once::new();
    ATTACH.call_once(|| {
        if !open_tool() {
            // A profiler that declines may have filled slots before.
            CORE.clear();
            CORE2.clear();
            return;
        }
        open_domain();
    });
}

fn open_tool() -> bool {
    let Some(path) = std::env::var_os(INJECTION_VARIABLE) else { return false };
    let Ok(path) = std::ffi::CString::new(std::os::unix::ffi::OsStringExt::into_vec(path)) else {
        return false;
    };
    // SAFETY: a C string. Whoever sets the variable chooses what is loaded, as with LD_PRELOAD.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    if library.is_null() {
        return false;
    }
    // SAFETY: a live library and a C string.
    let initialize = unsafe { libc::dlsym(library, INITIALIZE.as_ptr()) };
    let is_initialized = !initialize.is_null() && {
        // SAFETY: the protocol says what the symbol of that name is.
        let initialize = unsafe { std::mem::transmute::<*mut c_void, Initialize>(initialize) };
        // SAFETY: what it may ask of the function is answered for as long as the process lives.
        unsafe { initialize(get_export_table) != 0 }
    };
    if !is_initialized {
        // SAFETY: opened above, and nothing of it is used.
        unsafe { libc::dlclose(library) };
    }
    is_initialized
}

/// Names the domain and its categories. Without ranges there is nothing to name.
fn open_domain() {
    let create = CORE2.function(DOMAIN_CREATE);
    if create.is_null() {
        return;
    }
    // SAFETY: the profiler put it there as this function.
    let create = unsafe { std::mem::transmute::<*mut c_void, DomainCreate>(create) };
    // SAFETY: a static C string.
    let domain = unsafe { create(DOMAIN.as_ptr()) };
    let name = CORE2.function(NAME_CATEGORY);
    if !name.is_null() {
        // SAFETY: as above.
        let name = unsafe { std::mem::transmute::<*mut c_void, NameCategory>(name) };
        for step in Step::ALL {
            // SAFETY: the profiler's own handle, and a static C string.
            unsafe { name(domain, step as u32, step.name().as_ptr()) };
        }
    }
    DOMAIN_HANDLE.store(domain, Ordering::Release);
}

/// Whether a profiler is there to see ranges.
#[inline]
pub(super) fn wants_ranges() -> bool {
    !DOMAIN_HANDLE.load(Ordering::Relaxed).is_null()
}

fn domain() -> Domain {
    // Acquire: the profiler made what it points at.
    DOMAIN_HANDLE.load(Ordering::Acquire)
}

pub(super) fn push(step: Step, message: &CStr, bytes: u64) {
    let push = CORE2.function(RANGE_PUSH);
    if push.is_null() {
        return;
    }
    // SAFETY: the profiler put it there as this function.
    let push = unsafe { std::mem::transmute::<*mut c_void, RangePush>(push) };
    let attributes = Attributes::new(step, message, bytes);
    // SAFETY: the profiler's own handle; attributes and message live during the call, which copies.
    unsafe { push(domain(), &raw const attributes) };
}

pub(super) fn pop() {
    let pop = CORE2.function(RANGE_POP);
    if pop.is_null() {
        return;
    }
    // SAFETY: the profiler put it there as this function.
    let pop = unsafe { std::mem::transmute::<*mut c_void, RangePop>(pop) };
    // SAFETY: the profiler's own handle.
    unsafe { pop(domain()) };
}

/// The range's number; 0 where the profiler has none, which `end` takes too.
pub(super) fn start(step: Step, message: &CStr, bytes: u64) -> u64 {
    let start = CORE2.function(RANGE_START);
    if start.is_null() {
        return 0;
    }
    // SAFETY: the profiler put it there as this function.
    let start = unsafe { std::mem::transmute::<*mut c_void, RangeStart>(start) };
    let attributes = Attributes::new(step, message, bytes);
    // SAFETY: the profiler's own handle; attributes and message live during the call, which copies.
    unsafe { start(domain(), &raw const attributes) }
}

pub(super) fn end(range: u64) {
    let end = CORE2.function(RANGE_END);
    if end.is_null() {
        return;
    }
    // SAFETY: the profiler put it there as this function.
    let end = unsafe { std::mem::transmute::<*mut c_void, RangeEnd>(end) };
    // SAFETY: the profiler's own handle and number.
    unsafe { end(domain(), range) };
}

pub(super) fn name_this_thread(name: &CStr) {
    let function = CORE.function(NAME_OS_THREAD);
    if function.is_null() {
        return;
    }
    // SAFETY: the profiler put it there as this function.
    let function = unsafe { std::mem::transmute::<*mut c_void, NameOsThread>(function) };
    // SAFETY: no arguments; never fails.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // SAFETY: a C string that lives during the call, which copies.
    unsafe { function(thread, name.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profiler_finds_every_slot_behind_the_index_of_its_function() {
        for (module, functions) in [(1, 15), (2, 8), (3, 14), (4, 6), (5, 15), (6, 6)] {
            let (mut table, mut size) = (std::ptr::null(), 0);
            // SAFETY: two writable places.
            assert_eq!(unsafe { get_module_function_table(module, &mut table, &mut size) }, 1);
            assert_eq!(size, functions + 1);
            // SAFETY: the table has one entry more than its size.
            let table = unsafe { std::slice::from_raw_parts(table, size as usize + 1) };
            let (first, last) = (table[0], table[size as usize]);
            assert!(first.is_null() && last.is_null(), "a NULL at each end");
            assert!(table[1..size as usize].iter().all(|slot| !slot.is_null()));
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { get_module_function_table(7, null_mut(), null_mut()) }, 0);
    }

    #[test]
    fn tables_are_handed_out_by_number() {
        // SAFETY: any number is allowed.
        let tables = unsafe { [0, 1, 2, 3, 4].map(|number| get_export_table(number).is_null()) };
        assert_eq!(tables, [true, false, true, false, true]);
    }
}
