//! Reading what a C caller passed, and writing what it gets back.
//!
//! Guards: NULL with a length, lengths beyond the address space, struct sizes of other releases.
//! What it cannot check, and every caller promises in the header: that a non-NULL pointer points
//! at as many live bytes as its length says.

use super::status::kvh_status::{self, *};
use super::status::CallResult;
use super::types::{kvh_bytes_t, kvh_str_t};

/// A parameter struct: its first field is `struct_size`, and all-zero bytes are a valid value.
///
/// # Safety
/// The implementor is `#[repr(C)]`, starts with `struct_size: usize`, and holds only integers, raw
/// pointers, `Option<fn>` and structs of these.
pub(crate) unsafe trait Params: Copy {
    /// Bytes that the first release's struct had; a shorter one is refused.
    const MIN_SIZE: usize;
}

/// Copies a parameter struct, zero-filling what an older caller does not have. `KVH_ERR_ABI` when it
/// is shorter than the first release's, or sets something that this library does not know.
///
/// # Safety
/// `params` is NULL or points at `struct_size` readable bytes.
pub(crate) unsafe fn read_params<P: Params>(params: *const P) -> Result<P, kvh_status> {
    // SAFETY: the caller's promise.
    let (known, rest) = unsafe { read_known_params(params) }?;
    rest.map(|()| known)
}

/// As [`read_params`], but gives the fields that both sides know even where the struct is refused,
/// for a caller that has to take over something named in them. Of a struct that is too short these
/// are the fields that it holds whole; the others are zero.
///
/// # Safety
/// As for [`read_params`].
pub(crate) unsafe fn read_known_params<P: Params>(
    params: *const P,
) -> Result<(P, CallResult), kvh_status> {
    if params.is_null() {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    // SAFETY: by the trait's contract the struct starts with its size; the caller promises it.
    let struct_size = unsafe { params.cast::<usize>().read_unaligned() };
    if struct_size < size_of::<usize>() {
        return Err(KVH_ERR_ABI);
    }
    let is_refused = !is_of_a_header::<P>(struct_size);
    let mut known = bounded(struct_size)?.min(size_of::<P>());
    if is_refused {
        // No field reaches across a multiple of its alignment, which is a word's at most.
        known -= known % align_of::<usize>();
    }
    let mut copy = std::mem::MaybeUninit::<P>::zeroed();
    // SAFETY: `known` bytes are readable at `params` and fit into `copy`; all-zero bytes are a
    // valid P, and the copied ones were written by the caller as its fields.
    let copy = unsafe {
        std::ptr::copy_nonoverlapping(params.cast::<u8>(), copy.as_mut_ptr().cast(), known);
        copy.assume_init()
    };
    if is_refused {
        return Ok((copy, Err(KVH_ERR_ABI)));
    }
    // SAFETY: the caller promises struct_size readable bytes.
    let unknown =
        unsafe { std::slice::from_raw_parts(params.cast::<u8>().add(known), struct_size - known) };
    let rest = if unknown.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(KVH_ERR_ABI) };
    Ok((copy, rest))
}

/// Fills a caller's output struct that starts with `struct_size`: writes at most as many bytes as
/// the caller has, keeps its `struct_size`, and zeroes a tail this library does not know.
///
/// # Safety
/// `out` is NULL or points at `struct_size` writable bytes whose first field is initialised.
pub(crate) unsafe fn write_struct<P: Params>(out: *mut P, value: &P) -> CallResult {
    if out.is_null() {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    // SAFETY: by the trait's contract the struct starts with its size.
    let struct_size = unsafe { out.cast::<usize>().read_unaligned() };
    if !is_of_a_header::<P>(struct_size) {
        return Err(KVH_ERR_ABI);
    }
    let known = bounded(struct_size)?.min(size_of::<P>());
    // SAFETY: the caller promises struct_size writable bytes; `value` has at least `known`.
    unsafe {
        out.cast::<u8>().add(known).write_bytes(0, struct_size - known);
        let from = std::ptr::from_ref(value).cast::<u8>();
        let header = size_of::<usize>();
        std::ptr::copy_nonoverlapping(
            from.add(header),
            out.cast::<u8>().add(header),
            known - header,
        );
    }
    Ok(())
}

/// Whether the struct of some header has that size: none ends between its fields' words.
fn is_of_a_header<P: Params>(struct_size: usize) -> bool {
    struct_size >= P::MIN_SIZE && struct_size.is_multiple_of(align_of::<P>())
}

fn bounded(len: usize) -> Result<usize, kvh_status> {
    if len > isize::MAX as usize {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    Ok(len)
}

/// A slice argument; `(NULL, 0)` is the empty slice.
///
/// # Safety
/// `data` is NULL or points at `len` readable, properly aligned values that nobody changes during
/// `'a`.
pub(crate) unsafe fn slice<'a, T>(data: *const T, len: usize) -> Result<&'a [T], kvh_status> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || !data.is_aligned() {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    bounded(len.checked_mul(size_of::<T>()).ok_or(KVH_ERR_INVALID_ARGUMENT)?)?;
    // SAFETY: not NULL, aligned, no longer than the address space; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// A byte argument.
///
/// # Safety
/// As for [`slice()`].
pub(crate) unsafe fn bytes<'a>(bytes: kvh_bytes_t) -> Result<&'a [u8], kvh_status> {
    // SAFETY: the caller's promise is the same.
    unsafe { slice(bytes.data, bytes.len) }
}

/// A text argument; must be UTF-8.
///
/// # Safety
/// As for [`slice()`].
pub(crate) unsafe fn text<'a>(text: kvh_str_t) -> Result<&'a str, kvh_status> {
    // SAFETY: the caller's promise is the same.
    let bytes = unsafe { slice(text.data.cast::<u8>(), text.len) }?;
    std::str::from_utf8(bytes).map_err(|_| KVH_ERR_INVALID_ARGUMENT)
}

/// A place for one output; must not be NULL.
///
/// # Safety
/// `out` is NULL or points at a writable T that nobody else uses during the call.
pub(crate) unsafe fn out<'a, T>(
    out: *mut T,
) -> Result<&'a mut std::mem::MaybeUninit<T>, kvh_status> {
    if out.is_null() || !out.is_aligned() {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, aligned, and the caller promises that it is writable.
    Ok(unsafe { &mut *out.cast() })
}

/// The `(buffer, capacity, length out)` convention: the length is always written; `(NULL, 0)` asks
/// for it; a buffer too small is `KVH_ERR_TOO_SMALL` and stays untouched.
///
/// # Safety
/// `buffer` is NULL or points at `capacity` writable values; `len_out` as for [`out`].
pub(crate) unsafe fn copy_out<T: Copy>(
    values: &[T],
    buffer: *mut T,
    capacity: usize,
    len_out: *mut usize,
) -> CallResult {
    // SAFETY: the caller's promise.
    let len_out = unsafe { out(len_out) }?;
    if (buffer.is_null() && capacity > 0) || !buffer.is_aligned() {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    len_out.write(values.len());
    if buffer.is_null() {
        return Ok(());
    }
    if capacity < values.len() {
        return Err(KVH_ERR_TOO_SMALL);
    }
    // SAFETY: the buffer holds at least `values.len()` values, by the caller's promise; it cannot
    // overlap `values`, which this library owns.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), buffer, values.len()) };
    Ok(())
}

/// Fills a caller's array of structs that start with `struct_size`, the first of which has it set:
/// that is how far apart they are. Each gets its `struct_size`, and a tail of zeros where the caller
/// knows more. `next` gives the structs; how many were written.
///
/// # Safety
/// `structs` is NULL, or points at `capacity` structs of the size that the first one says, all
/// writable; the first one's size is initialised.
pub(crate) unsafe fn write_structs<P: Params>(
    structs: *mut P,
    capacity: usize,
    fill: impl FnOnce(&mut dyn FnMut(&P)) -> CallResult,
) -> Result<usize, kvh_status> {
    if capacity == 0 {
        return Ok(0);
    }
    if structs.is_null() || !structs.is_aligned() {
        return Err(KVH_ERR_INVALID_ARGUMENT);
    }
    // SAFETY: by the trait's contract a struct starts with its size; the caller promises the first.
    let struct_size = unsafe { structs.cast::<usize>().read_unaligned() };
    if !is_of_a_header::<P>(struct_size) {
        return Err(KVH_ERR_ABI);
    }
    bounded(struct_size.checked_mul(capacity).ok_or(KVH_ERR_INVALID_ARGUMENT)?)?;
    let mut written = 0;
    let mut each = |value: &P| {
        assert!(written < capacity, "no more than was asked for");
        // SAFETY: `written` is below `capacity`, so that many bytes on lies a struct of this size.
        unsafe {
            let place = structs.cast::<u8>().add(written * struct_size);
            place.cast::<usize>().write_unaligned(struct_size);
            // Cannot fail: not NULL, and the size is one that was accepted.
            let _ = write_struct(place.cast::<P>(), value);
        }
        written += 1;
    };
    fill(&mut each)?;
    Ok(written)
}

/// A copy of an argument or of an answer, for which memory is asked.
pub(crate) fn kept<T: Copy>(values: &[T]) -> Result<Vec<T>, kvh_status> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(values.len())?;
    copy.extend_from_slice(values);
    Ok(copy)
}
