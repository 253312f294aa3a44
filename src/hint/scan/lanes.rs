//! Byte classes, many bytes at once: the only place that knows of wide registers.
//!
//! A scan is compiled once for each [`Lanes`]: for [`Avx2`], where the CPU has it, which is found
//! out at run time, and for [`Portable`], plain integers of eight bytes. Both give the same bits,
//! which tests compare, so that nobody else needs to know which one ran.
//!
//! `unsafe` here is only the way to the CPU's instructions: each block of bytes comes as an array of
//! its full length, and [`Avx2`] is used only inside functions that were entered after detection.

use super::runs;

/// Which lanes a scan uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width {
    /// True only where the CPU has them.
    is_avx2: bool,
}

impl Width {
    /// Plain integers, as on CPUs without wide registers.
    pub const PORTABLE: Self = Self { is_avx2: false };

    /// The widest that this CPU has.
    #[inline]
    pub fn widest() -> Self {
        #[cfg(target_arch = "x86_64")]
        let is_avx2 = Avx2::is_there();
        #[cfg(not(target_arch = "x86_64"))]
        let is_avx2 = false;
        Self { is_avx2 }
    }

    /// Whether scans use [`Avx2`]; then the CPU has it.
    #[inline]
    pub fn is_avx2(self) -> bool {
        self.is_avx2
    }
}

/// Which of 64 bytes are what numbers in an array are made of; bit 0 is the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberMasks {
    /// `0`..`9`
    pub digits: u64,
    /// Digits that are zero.
    pub zeros: u64,
    /// Anything but `1`.
    pub not_one: u64,
    /// Eight, nine, and whatever of ASCII stands above them.
    pub from_eight: u64,
    /// Commas.
    pub commas: u64,
}

impl NumberMasks {
    /// Those of the bytes behind the first `count`, which are fewer than 64; nothing behind them.
    #[inline(always)]
    pub fn behind(self, count: usize) -> Self {
        Self {
            digits: self.digits >> count,
            zeros: self.zeros >> count,
            not_one: self.not_one >> count,
            from_eight: self.from_eight >> count,
            commas: self.commas >> count,
        }
    }
}

/// Classes of bytes as bits. The first three mark what is outside of a class.
pub trait Lanes: Copy {
    /// Not `0`..`9`.
    fn not_digits(block: &[u8; 32]) -> u32;
    /// What ends plain string text: quote, backslash, control, non-ASCII.
    fn not_plain(block: &[u8; 32]) -> u32;
    /// Neither space, tab, line feed nor carriage return.
    fn not_blanks(block: &[u8; 32]) -> u32;
    /// See [`NumberMasks`].
    fn number_masks(block: &[u8; 64]) -> NumberMasks;
    /// Which bytes are spaces.
    fn spaces(block: &[u8; 64]) -> u64;
}

/// Eight bytes in a plain integer.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

/// One bit for each of `N` bytes, from the top bits that `mark` gives for each eight.
#[inline(always)]
fn bits<const N: usize>(block: &[u8; N], mark: impl Fn(u64) -> u64) -> u64 {
    block.chunks_exact(8).rev().fold(0, |bits, chunk| {
        let word = chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        // Gathers the eight top bits in the top byte.
        let gathered = ((mark(word) >> 7).wrapping_mul(0x0102_0408_1020_4080)) >> 56;
        bits << 8 | gathered
    })
}

/// Top bits of the bytes that equal `byte`.
#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    let difference = word ^ runs::eight(byte);
    let low = difference & !runs::TOP_BITS;
    !((low + runs::eight(127)) | difference) & runs::TOP_BITS
}

impl Lanes for Portable {
    #[inline(always)]
    fn not_digits(block: &[u8; 32]) -> u32 {
        // Exact for each byte, unlike the faster form for runs, which is right up to the first.
        !(bits(block, digits) as u32)
    }

    #[inline(always)]
    fn not_plain(block: &[u8; 32]) -> u32 {
        bits(block, runs::not_plain) as u32
    }

    #[inline(always)]
    fn not_blanks(block: &[u8; 32]) -> u32 {
        bits(block, runs::not_blanks) as u32
    }

    #[inline(always)]
    fn number_masks(block: &[u8; 64]) -> NumberMasks {
        NumberMasks {
            digits: bits(block, digits),
            zeros: bits(block, |word| equal(word, b'0')),
            not_one: !bits(block, |word| equal(word, b'1')),
            from_eight: bits(block, from_eight),
            commas: bits(block, |word| equal(word, b',')),
        }
    }

    #[inline(always)]
    fn spaces(block: &[u8; 64]) -> u64 {
        bits(block, |word| equal(word, b' '))
    }
}

/// Top bits of the bytes that are digits.
#[inline(always)]
fn digits(word: u64) -> u64 {
    let distance = word ^ runs::eight(b'0');
    let low = distance & !runs::TOP_BITS;
    !((low + runs::eight(128 - 10)) | distance) & runs::TOP_BITS
}

/// Top bits of the ASCII bytes from eight on.
#[inline(always)]
fn from_eight(word: u64) -> u64 {
    ((word & !runs::TOP_BITS) + runs::eight(128 - b'8')) & !word & runs::TOP_BITS
}

#[cfg(target_arch = "x86_64")]
pub use x86::Avx2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, NumberMasks};
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// 32 bytes in a register. To be used only inside functions that are compiled for AVX2 and
    /// entered only where [`Avx2::is_there`].
    #[derive(Debug, Clone, Copy)]
    pub struct Avx2;

    impl Avx2 {
        /// Whether this CPU has what a scan with these lanes is compiled for.
        #[inline]
        pub fn is_there() -> bool {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
        }
    }

    #[inline(always)]
    fn load(block: &[u8; 32]) -> __m256i {
        // SAFETY: 32 bytes are readable and the load asks for no alignment; AVX2 as the type says.
        unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }
    }

    #[inline(always)]
    fn bits(lanes: __m256i) -> u32 {
        // SAFETY: AVX2 as the type says.
        unsafe { _mm256_movemask_epi8(lanes) as u32 }
    }

    #[inline(always)]
    fn equal(bytes: __m256i, byte: u8) -> __m256i {
        // SAFETY: AVX2 as the type says.
        unsafe { _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(byte as i8)) }
    }

    /// Unsigned, which AVX2 has no comparison for.
    #[inline(always)]
    fn at_most(bytes: __m256i, byte: u8) -> __m256i {
        // SAFETY: AVX2 as the type says.
        unsafe { _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, _mm256_set1_epi8(byte as i8)), bytes) }
    }

    /// Signed: non-ASCII bytes are above nothing.
    #[inline(always)]
    fn above(bytes: __m256i, byte: u8) -> __m256i {
        // SAFETY: AVX2 as the type says.
        unsafe { _mm256_cmpgt_epi8(bytes, _mm256_set1_epi8(byte as i8)) }
    }

    #[inline(always)]
    fn or(one: __m256i, other: __m256i) -> __m256i {
        // SAFETY: AVX2 as the type says.
        unsafe { _mm256_or_si256(one, other) }
    }

    /// How far each byte is above `0`; what is below wraps to far above.
    #[inline(always)]
    fn from_zero(bytes: __m256i) -> __m256i {
        // SAFETY: AVX2 as the type says.
        unsafe { _mm256_sub_epi8(bytes, _mm256_set1_epi8(b'0' as i8)) }
    }

    #[inline(always)]
    fn halves(block: &[u8; 64]) -> (__m256i, __m256i) {
        // SAFETY: both halves lie in the block; AVX2 as the type says.
        unsafe {
            (
                _mm256_loadu_si256(block.as_ptr().cast()),
                _mm256_loadu_si256(block.as_ptr().add(32).cast()),
            )
        }
    }

    /// The bits of two halves. The compiler must not see where they come from: it would take them
    /// for lanes still, and do the arithmetic on them lane by lane.
    #[inline(always)]
    fn joined(low: __m256i, high: __m256i) -> u64 {
        let mut mask = u64::from(bits(low)) | u64::from(bits(high)) << 32;
        // SAFETY: no instruction at all; the register keeps its value.
        unsafe {
            asm!("/* {0} */", inout(reg) mask, options(pure, nomem, nostack, preserves_flags));
        }
        mask
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        fn not_digits(block: &[u8; 32]) -> u32 {
            !bits(at_most(from_zero(load(block)), 9))
        }

        #[inline(always)]
        fn not_plain(block: &[u8; 32]) -> u32 {
            let bytes = load(block);
            let special = or(equal(bytes, b'"'), equal(bytes, b'\\'));
            // The top bits of non-ASCII bytes are set already.
            bits(or(or(special, at_most(bytes, 0x1f)), bytes))
        }

        #[inline(always)]
        fn not_blanks(block: &[u8; 32]) -> u32 {
            let bytes = load(block);
            let some = or(equal(bytes, b' '), equal(bytes, b'\t'));
            !bits(or(some, or(equal(bytes, b'\n'), equal(bytes, b'\r'))))
        }

        #[inline(always)]
        fn number_masks(block: &[u8; 64]) -> NumberMasks {
            let (low, high) = halves(block);
            NumberMasks {
                digits: joined(at_most(from_zero(low), 9), at_most(from_zero(high), 9)),
                zeros: joined(equal(low, b'0'), equal(high, b'0')),
                not_one: !joined(equal(low, b'1'), equal(high, b'1')),
                from_eight: joined(above(low, b'7'), above(high, b'7')),
                commas: joined(equal(low, b','), equal(high, b',')),
            }
        }

        #[inline(always)]
        fn spaces(block: &[u8; 64]) -> u64 {
            let (low, high) = halves(block);
            joined(equal(low, b' '), equal(high, b' '))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plainly(block: &[u8], is: impl Fn(u8) -> bool) -> u64 {
        block.iter().rev().fold(0, |bits, byte| bits << 1 | u64::from(is(*byte)))
    }

    fn check<L: Lanes>(block: &[u8; 64]) {
        let half: &[u8; 32] = block.first_chunk().expect("32 of 64 bytes");
        let blanks = [b' ', b'\t', b'\n', b'\r'];
        let plain = |byte: u8| (0x20..0x80).contains(&byte) && byte != b'"' && byte != b'\\';
        assert_eq!(u64::from(!L::not_digits(half)), plainly(half, |byte| byte.is_ascii_digit()));
        assert_eq!(u64::from(!L::not_plain(half)), plainly(half, plain));
        assert_eq!(u64::from(!L::not_blanks(half)), plainly(half, |byte| blanks.contains(&byte)));
        assert_eq!(L::spaces(block), plainly(block, |byte| byte == b' '));
        let masks = NumberMasks {
            digits: plainly(block, |byte| byte.is_ascii_digit()),
            zeros: plainly(block, |byte| byte == b'0'),
            not_one: plainly(block, |byte| byte != b'1'),
            from_eight: plainly(block, |byte| (b'8'..0x80).contains(&byte)),
            commas: plainly(block, |byte| byte == b','),
        };
        assert_eq!(L::number_masks(block), masks);
    }

    fn check_all(block: &[u8; 64]) {
        check::<Portable>(block);
        #[cfg(target_arch = "x86_64")]
        if Avx2::is_there() {
            check::<Avx2>(block);
        }
    }

    #[test]
    fn every_byte_at_every_place_has_its_classes() {
        for place in 0..64 {
            for byte in 0..=255 {
                for around in [b'5', 0xff] {
                    let mut block = [around; 64];
                    block[place] = byte;
                    check_all(&block);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn all_lanes_give_the_same_bits(bytes in prop::collection::vec(any::<u8>(), 64)) {
            check_all(bytes.first_chunk().expect("64 bytes"));
        }
    }
}
