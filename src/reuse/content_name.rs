//! Content names: what decides whether two blocks are the same, on this worker and on others.
//!
//! A name is one step of SHA-256 over the parent's name and the digest of the block's own key. The
//! encoding, and why equal names mean equal blocks, is part of the wire protocol and written down,
//! with vectors, in `docs/protocol.md`, section *Content names*. A change of it is a new version of
//! its tags.
//! Never does: look into keys, see `key_digest`.

use sha2::digest::generic_array::GenericArray;
use sha2::{Digest, Sha256};

use super::key_digest::KeyDigest;
use super::work_count;

/// The identity of a block together with everything before it: a state of SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub [u8; 32]);

impl std::fmt::Debug for Name {
    /// The first bytes, enough to tell names apart in a report.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(formatter, "Name({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

const ROOT_TAG: &[u8; 16] = b"kvhints root v1\0";

/// The state of SHA-256 after the step that says that a name follows: `kvhints name v1`, then zeros.
pub(super) const BEFORE_NAME: [u32; 8] = [
    0xe688_c8f3,
    0x8300_5415,
    0xa60d_7b78,
    0xf943_5b28,
    0x588e_2eb2,
    0xc11f_32d8,
    0xf0df_2343,
    0x675b_fb59,
];

/// The name that first blocks have as their parent's.
pub(super) fn root(namespace: &[u8], tokens_per_block: u32) -> Name {
    let mut hasher = Sha256::new();
    hasher.update(ROOT_TAG);
    hasher.update(tokens_per_block.to_le_bytes());
    hasher.update((namespace.len() as u64).to_le_bytes());
    hasher.update(namespace);
    Name(hasher.finalize().into())
}

/// The name of the block with this key below `parent`.
pub(super) fn name(parent: Name, key_digest: &KeyDigest) -> Name {
    work_count::names(1);
    let mut step = GenericArray::from([0; 64]);
    step[..32].copy_from_slice(&parent.0);
    step[32..].copy_from_slice(key_digest);
    let mut state = BEFORE_NAME;
    sha2::compress256(&mut state, &[step]);
    let mut name = [0; 32];
    for (bytes, word) in name.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    Name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_start_where_the_tag_leads() {
        let mut tag = [0; 64];
        tag[..15].copy_from_slice(b"kvhints name v1");
        let mut state = SHA_256_START;
        sha2::compress256(&mut state, &[GenericArray::from(tag)]);
        assert_eq!(state, BEFORE_NAME);
    }

    /// SHA-256 before any message (FIPS 180-4, 5.3.3).
    const SHA_256_START: [u32; 8] = [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ];
}
