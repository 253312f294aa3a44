//! Copying a block and taking its checksum in one pass.
//!
//! What it is for: a pass over memory that nobody has read yet costs as much as a copy, so a checksum of its
//! own would halve the speed at which blocks move. Here each stripe of a block is read once, written, and
//! summed. The sum is [`super::protocol::block_checksum`]: XXH3, 64 bits, with a seed.
//!
//! Guards: the sum is one of the bytes that were written, whatever somebody else does to the block meanwhile.
//! Never does: decide what may be read or written.

use twox_hash::XxHash3_64;

/// Bytes that are summed in one step, in eight lanes.
const STRIPE_BYTES: usize = 64;
const LANES: usize = 8;
/// Steps between two scrambles of the lanes: one for each eight bytes of the secret beyond a stripe.
const STRIPES_A_ROUND: usize = 16;
const ROUND_BYTES: usize = STRIPES_A_ROUND * STRIPE_BYTES;
const SECRET_BYTES: usize = 192;
/// Shorter blocks are summed in another way.
const MIN_BYTES: usize = 241;
/// How far ahead memory is asked for: processors do not look beyond a page by themselves.
const AHEAD_BYTES: usize = 2 << 10;

const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME32_2: u64 = 0x85eb_ca77;
const PRIME32_3: u64 = 0xc2b2_ae3d;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME64_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME64_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME64_5: u64 = 0x27d4_eb2f_1656_67c5;

/// XXH3's own secret.
#[rustfmt::skip]
const SECRET: [u64; SECRET_BYTES / 8] = [
    0xbe4b_a423_396c_feb8, 0x1cad_21f7_2c81_017c, 0xdb97_9083_e96d_d4de, 0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb, 0x2172_ffcc_7dd0_5a82, 0x8e24_43f7_7446_08b8, 0x4c26_3a81_e690_35e0,
    0xcb00_c391_bb52_283c, 0xa32e_531b_8b65_d088, 0x4ef9_0da2_9748_6471, 0xd8ac_dea9_46ef_1938,
    0x3f34_9ce3_3f76_faa8, 0x1d4f_0bc7_c7bb_dcf9, 0x3159_b4cd_4be0_518a, 0x6473_78d9_c97e_9fc8,
    0xc3eb_d334_83ac_c5ea, 0xeb63_13fa_ffa0_81c5, 0x49da_f0b7_51dd_0d17, 0x9e68_d429_2655_16d3,
    0xfca1_477d_58be_162b, 0xce31_d07a_d1b8_f88f, 0x2804_1695_8f3a_cb45, 0x7e40_4bbb_cafb_d7af,
];

type Lanes = [u64; LANES];

/// Copies a block of `len` bytes: the sum of what was written.
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, where nobody else writes, and the two do not
/// overlap. At `from` somebody may write meanwhile: then any bytes are copied.
pub(super) unsafe fn copy_and_sum(from: *const u8, to: *mut u8, len: usize, seed: u64) -> u64 {
    if len < MIN_BYTES {
        // SAFETY: the caller's promise; what was copied is initialised.
        let copy = unsafe {
            std::ptr::copy_nonoverlapping(from, to, len);
            std::slice::from_raw_parts(to, len)
        };
        return XxHash3_64::oneshot_with_seed(seed, copy);
    }
    let secret = secret_of(seed);
    let mut lanes =
        [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];
    let round = round_of_machine();
    // The last stripe is summed by itself, at the end, whatever it shares with the one before.
    let rounds = (len - 1) / ROUND_BYTES;
    for number in 0..rounds {
        let at = number * ROUND_BYTES;
        let ahead = if at + AHEAD_BYTES < len { AHEAD_BYTES } else { 0 };
        // SAFETY: the round is inside of the block; `round` is for this machine.
        unsafe { round(&mut lanes, from.add(at), to.add(at), ahead, &secret) };
    }
    let mut at = rounds * ROUND_BYTES;
    let stripes = (len - 1 - at) / STRIPE_BYTES;
    for number in 0..stripes {
        // SAFETY: the stripe is inside of the block, and its part of the secret of that.
        unsafe { stripe(&mut lanes, from.add(at), to.add(at), secret.as_ptr().add(number * 8)) };
        at += STRIPE_BYTES;
    }
    // SAFETY: the rest of the block; the last stripe is a part of it and is written by now.
    unsafe {
        std::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at);
        let last = to.add(len - STRIPE_BYTES);
        let secret = secret.as_ptr().add(SECRET_BYTES - STRIPE_BYTES - 7);
        add(&mut lanes, last.cast::<Lanes>().read_unaligned(), secret);
    }
    merge(&lanes, &secret, len)
}

/// The secret that belongs to a seed.
fn secret_of(seed: u64) -> [u8; SECRET_BYTES] {
    let mut secret = [0; SECRET_BYTES];
    let words = SECRET.iter().enumerate().map(|(index, word)| match index % 2 {
        0 => word.wrapping_add(seed),
        _ => word.wrapping_sub(seed),
    });
    for (bytes, word) in secret.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    secret
}

/// Adds a stripe to the lanes.
///
/// # Safety
/// A stripe is readable at `key`.
#[inline(always)]
unsafe fn add(lanes: &mut Lanes, data: Lanes, key: *const u8) {
    // SAFETY: the caller's promise.
    let key = unsafe { key.cast::<Lanes>().read_unaligned() };
    for lane in 0..LANES {
        let data_of_lane = u64::from_le(data[lane]);
        let keyed = data_of_lane ^ u64::from_le(key[lane]);
        let product = (keyed & 0xffff_ffff).wrapping_mul(keyed >> 32);
        let neighbour = u64::from_le(data[lane ^ 1]);
        lanes[lane] = lanes[lane].wrapping_add(neighbour).wrapping_add(product);
    }
}

/// Copies a stripe and adds it to the lanes.
///
/// # Safety
/// A stripe is readable at `from` and at `key`, and writable at `to`.
#[inline(always)]
unsafe fn stripe(lanes: &mut Lanes, from: *const u8, to: *mut u8, key: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let data = from.cast::<Lanes>().read_unaligned();
        to.cast::<Lanes>().write_unaligned(data);
        add(lanes, data, key);
    }
}

type Round = unsafe fn(&mut Lanes, *const u8, *mut u8, usize, &[u8; SECRET_BYTES]);

/// Copies a round, adds it to the lanes, and scrambles them.
///
/// # Safety
/// A round is readable at `from` and writable at `to`. What lies `ahead` of it need not be there.
#[inline(always)]
unsafe fn round(
    lanes: &mut Lanes,
    from: *const u8,
    to: *mut u8,
    ahead: usize,
    secret: &[u8; SECRET_BYTES],
) {
    let mut own = *lanes;
    for number in 0..STRIPES_A_ROUND {
        let at = number * STRIPE_BYTES;
        fetch_ahead(from.wrapping_add(at + ahead));
        // SAFETY: the stripe is inside of the round, and its part of the secret of that.
        unsafe { stripe(&mut own, from.add(at), to.add(at), secret.as_ptr().add(number * 8)) };
    }
    let (_, last) = secret.split_at(SECRET_BYTES - STRIPE_BYTES);
    for (lane, key) in own.iter_mut().zip(last.as_chunks::<8>().0) {
        let mixed = *lane ^ (*lane >> 47) ^ u64::from_le_bytes(*key);
        *lane = mixed.wrapping_mul(PRIME32_1);
    }
    *lanes = own;
}

/// Has the processor fetch a line of memory that is read soon. A hint: bad addresses do nothing.
#[inline(always)]
fn fetch_ahead(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: touches no memory as the language sees it, whatever the address.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// `round`, compiled for the widest vectors that this machine has. A function of its own that is never
/// inlined: a compiler that sees the loop around it makes worse code of it.
fn round_of_machine() -> Round {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq") {
            return x86::round_of_avx512;
        }
        if is_x86_feature_detected!("avx2") {
            return x86::round_of_avx2;
        }
    }
    round_of_any
}

/// # Safety
/// As of `round`.
#[inline(never)]
unsafe fn round_of_any(
    lanes: &mut Lanes,
    from: *const u8,
    to: *mut u8,
    ahead: usize,
    secret: &[u8; SECRET_BYTES],
) {
    // SAFETY: the caller's promise.
    unsafe { round(lanes, from, to, ahead, secret) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{round, Lanes, SECRET_BYTES};

    /// # Safety
    /// As of `round`, on a machine with AVX-512 F and DQ.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub unsafe fn round_of_avx512(
        lanes: &mut Lanes,
        from: *const u8,
        to: *mut u8,
        ahead: usize,
        secret: &[u8; SECRET_BYTES],
    ) {
        // SAFETY: the caller's promise.
        unsafe { round(lanes, from, to, ahead, secret) }
    }

    /// # Safety
    /// As of `round`, on a machine with AVX2.
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    pub unsafe fn round_of_avx2(
        lanes: &mut Lanes,
        from: *const u8,
        to: *mut u8,
        ahead: usize,
        secret: &[u8; SECRET_BYTES],
    ) {
        // SAFETY: the caller's promise.
        unsafe { round(lanes, from, to, ahead, secret) }
    }
}

/// The sum that the lanes come to.
fn merge(lanes: &Lanes, secret: &[u8; SECRET_BYTES], len: usize) -> u64 {
    /// Where the secret's words for this begin.
    const START: usize = 11;
    let (keys, _) = secret[START..].as_chunks::<8>();
    let mut sum = (len as u64).wrapping_mul(PRIME64_1);
    for (pair, keys) in lanes.as_chunks::<2>().0.iter().zip(keys.as_chunks::<2>().0) {
        let keyed = |lane: usize| u128::from(pair[lane] ^ u64::from_le_bytes(keys[lane]));
        let product = keyed(0) * keyed(1);
        sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(0x1656_6791_9e37_79f9);
    sum ^ (sum >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u64).map(|at| (at.wrapping_mul(PRIME64_1) >> 40) as u8).collect()
    }

    #[test]
    fn every_length_is_copied_and_has_the_sum_that_peers_compare() {
        let source = bytes(9000);
        let lens = (0..2600).chain([4095, 4096, 4097, 8191, 8192, 8999]);
        for (len, seed) in lens.zip([0, 1, u64::MAX, PRIME64_5].into_iter().cycle()) {
            let mut target = vec![0u8; len + 9];
            let (from, at) = (&source[len % 2..][..len], len % 7);
            // SAFETY: both are long enough, and two vectors do not overlap.
            let sum =
                unsafe { copy_and_sum(from.as_ptr(), target.as_mut_ptr().add(at), len, seed) };
            assert_eq!(sum, XxHash3_64::oneshot_with_seed(seed, from), "{len} bytes");
            assert_eq!(target[at..at + len], *from, "{len} bytes");
            let beside = target[..at].iter().chain(&target[at + len..]);
            assert!(beside.into_iter().all(|byte| *byte == 0), "{len} bytes");
        }
    }

    #[test]
    fn all_machines_come_to_the_same_lanes() {
        let source = bytes(ROUND_BYTES);
        let secret = secret_of(77);
        let run = |round: Round| {
            let (mut lanes, mut target) = ([1, 2, 3, 4, 5, 6, 7, u64::MAX], vec![0; ROUND_BYTES]);
            // SAFETY: both are a round long, and the caller has the machine for it.
            unsafe { round(&mut lanes, source.as_ptr(), target.as_mut_ptr(), 0, &secret) };
            assert_eq!(target, source);
            lanes
        };
        let expected = run(round_of_any);
        assert_eq!(run(round_of_machine()), expected);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            assert_eq!(run(x86::round_of_avx2), expected);
        }
    }
}
