//! BLAKE3 in its keyed mode and SHA-256's compression function, as their papers have them: slow, and
//! nothing of the crates that the library uses.

use std::sync::LazyLock;

/// SHA-256's compression function (FIPS 180-4, 6.2.2). The constants are the first bits of roots of
/// primes.
pub fn sha256_compress(state: [u32; 8], step: &[u8]) -> [u32; 8] {
    static ROUND_CONSTANTS: LazyLock<[u32; 64]> = LazyLock::new(|| root_fractions(3));
    let mut schedule: Vec<u32> = step
        .chunks(4)
        .map(|word| u32::from_be_bytes(word.try_into().expect("four bytes")))
        .collect();
    for at in 16..64 {
        let (early, late) = (schedule[at - 15], schedule[at - 2]);
        let small = early.rotate_right(7) ^ early.rotate_right(18) ^ (early >> 3);
        let large = late.rotate_right(17) ^ late.rotate_right(19) ^ (late >> 10);
        let sum = schedule[at - 16].wrapping_add(small).wrapping_add(schedule[at - 7]);
        schedule.push(sum.wrapping_add(large));
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
    for (word, constant) in schedule.into_iter().zip(*ROUND_CONSTANTS) {
        let choice = (e & f) ^ (!e & g);
        let large = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let first = h.wrapping_add(large).wrapping_add(choice);
        let first = first.wrapping_add(constant).wrapping_add(word);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        let small = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let second = small.wrapping_add(majority);
        (h, g, f, e, d, c, b, a) =
            (g, f, e, d.wrapping_add(first), c, b, a, first.wrapping_add(second));
    }
    let after = [a, b, c, d, e, f, g, h];
    std::array::from_fn(|word| state[word].wrapping_add(after[word]))
}

/// The state of both hashes before any message.
pub fn initial_state() -> [u32; 8] {
    static STATE: LazyLock<[u32; 8]> = LazyLock::new(|| root_fractions(2));
    *STATE
}

/// For the first primes, the first 32 bits behind the point of their square or cube roots.
fn root_fractions<const N: usize>(power: u32) -> [u32; N] {
    let mut primes =
        (2..).filter(|number: &u128| !(2..*number).any(|divisor| number.is_multiple_of(divisor)));
    std::array::from_fn(|_| root_fraction(primes.next().expect("no last prime"), power))
}

fn root_fraction(prime: u128, power: u32) -> u32 {
    let scaled = prime << (32 * power);
    let (mut low, mut high) = (0_u128, 1 << 40);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if middle.pow(power) <= scaled {
            low = middle
        } else {
            high = middle
        }
    }
    low as u32
}

const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;
const KEYED_HASH: u32 = 16;

/// BLAKE3's compression function (its paper, 2.2), the half of its output that chains.
fn blake3_compress(
    chain: [u32; 8],
    mut message: [u32; 16],
    counter: u64,
    length: usize,
    flags: u32,
) -> [u32; 8] {
    const ORDER: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
    let mut state = [0; 16];
    state[..8].copy_from_slice(&chain);
    state[8..12].copy_from_slice(&initial_state()[..4]);
    state[12..].copy_from_slice(&[counter as u32, (counter >> 32) as u32, length as u32, flags]);
    for _ in 0..7 {
        for quarter in 0..8 {
            let (column, diagonal) = (quarter % 4, quarter / 4);
            let [a, b, c, d] = [0, 1, 2, 3].map(|row| 4 * row + (column + row * diagonal) % 4);
            for (half, turns) in [[16, 12], [8, 7]].into_iter().enumerate() {
                state[a] =
                    state[a].wrapping_add(state[b]).wrapping_add(message[2 * quarter + half]);
                state[d] = (state[d] ^ state[a]).rotate_right(turns[0]);
                state[c] = state[c].wrapping_add(state[d]);
                state[b] = (state[b] ^ state[c]).rotate_right(turns[1]);
            }
        }
        message = ORDER.map(|from| message[from]);
    }
    std::array::from_fn(|word| state[word] ^ state[word + 8])
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut padded = bytes.to_vec();
    padded.resize(4 * N, 0);
    std::array::from_fn(|word| {
        u32::from_le_bytes(padded[4 * word..4 * word + 4].try_into().expect("four bytes"))
    })
}

/// One node of BLAKE3's tree, over the chunks from `first_chunk` on.
fn blake3_node(key: [u32; 8], bytes: &[u8], first_chunk: u64, root: u32) -> [u32; 8] {
    if bytes.len() <= 1024 {
        let mut steps: Vec<&[u8]> = bytes.chunks(64).collect();
        if steps.is_empty() {
            steps.push(&[]);
        }
        let last = steps.len() - 1;
        return steps.iter().enumerate().fold(key, |chain, (index, step)| {
            let start = if index == 0 { CHUNK_START } else { 0 };
            let end = if index == last { CHUNK_END | root } else { 0 };
            blake3_compress(chain, words(step), first_chunk, step.len(), KEYED_HASH | start | end)
        });
    }
    // The left side is the largest power of two of whole chunks that leaves something to the right.
    let chunks = (bytes.len() - 1) / 1024;
    let left = 1 << chunks.ilog2();
    let (left_bytes, right_bytes) = bytes.split_at(1024 * left);
    let mut message = [0; 16];
    message[..8].copy_from_slice(&blake3_node(key, left_bytes, first_chunk, 0));
    message[8..].copy_from_slice(&blake3_node(key, right_bytes, first_chunk + left as u64, 0));
    blake3_compress(key, message, 0, 64, KEYED_HASH | PARENT | root)
}

/// BLAKE3 in its keyed mode, 32 bytes of output.
pub fn blake3_keyed(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    assert_eq!(key.len(), 32);
    let output = blake3_node(words(key), bytes, 0, ROOT);
    output.iter().flat_map(|word| word.to_le_bytes()).collect()
}
