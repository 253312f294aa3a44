//! The last, short block of a prompt, for a worker that may hold a longer block which begins with it.
//!
//! A name says nothing of the blocks that begin like its own. A prompt that was prefilled elsewhere
//! and went on there lies at the head of a longer block, so a peer that is to find it needs the
//! tokens.
//!
//! Guards: a tail that does not belong to the name it comes with is told apart, whatever was changed
//! of it. Only of text: what images and extra ids decide is found by the exact name alone.

use super::content_name::{self, Name};
use super::key::{Adapter, KeyTraits, KeyView, Salt};
use super::key_digest::KeyDigester;
use super::multimodal::MmKeys;

/// The tokens of a short block, and all else that its name is made of.
#[derive(Clone, PartialEq, Eq)]
pub struct TextTail {
    /// The name of the block before it, or of the root.
    parent: Name,
    traits: KeyTraits,
    tokens: Vec<i32>,
}

/// Bytes of [`TextTail::traits`].
pub const TAIL_TRAITS_BYTES: usize = 66;

impl TextTail {
    /// A tail from what was read. `None`: no such traits, or no tokens.
    pub fn new(parent: Name, traits: &[u8; TAIL_TRAITS_BYTES], tokens: Vec<i32>) -> Option<Self> {
        let [adapter_kind, salt_kind, values @ ..] = traits;
        let (adapter_bytes, salt_bytes) = values.split_first_chunk::<32>()?;
        let salt_bytes: &[u8; 32] = salt_bytes.try_into().ok()?;
        let (number, after_number) = salt_bytes.split_first_chunk::<8>()?;
        let nothing = [0; 32];
        let adapter = match adapter_kind {
            0 if *adapter_bytes == nothing => Adapter::None,
            1 => Adapter::Global(*adapter_bytes),
            _ => return None,
        };
        let salt = match salt_kind {
            0 if *salt_bytes == nothing => Salt::None,
            1 if *after_number == nothing[8..] => Salt::Number(u64::from_le_bytes(*number)),
            2 => Salt::Bytes(*salt_bytes),
            _ => return None,
        };
        let traits = KeyTraits { uses_extra_ids: false, adapter, salt };
        (!tokens.is_empty()).then_some(Self { parent, traits, tokens })
    }

    /// The tail of a sequence whose names mean the same everywhere; `tokens` is not empty.
    pub(super) fn of(parent: Name, traits: &KeyTraits, tokens: Vec<i32>) -> Self {
        Self { parent, traits: *traits, tokens }
    }

    /// The name of the block before it, or of the root.
    pub fn parent(&self) -> &Name {
        &self.parent
    }

    /// Adapter and salt, as [`TextTail::new`] reads them.
    pub fn traits(&self) -> [u8; TAIL_TRAITS_BYTES] {
        let mut traits = [0; TAIL_TRAITS_BYTES];
        if let Adapter::Global(digest) = &self.traits.adapter {
            traits[0] = 1;
            traits[2..34].copy_from_slice(digest);
        }
        match &self.traits.salt {
            Salt::None => {}
            Salt::Number(salt) => {
                traits[1] = 1;
                traits[34..42].copy_from_slice(&salt.to_le_bytes());
            }
            Salt::Bytes(digest) => {
                traits[1] = 2;
                traits[34..].copy_from_slice(digest);
            }
        }
        traits
    }

    /// Its tokens; at least one.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Whether this is the tail that a block of so many tokens has under `name`.
    pub fn is_of(&self, name: &Name, tokens_per_block: usize) -> bool {
        let digester = KeyDigester::new(&self.traits, tokens_per_block);
        self.tokens.len() < tokens_per_block
            && content_name::name(self.parent, &digester.digest(&self.key())) == *name
    }

    pub(super) fn key(&self) -> KeyView<'_> {
        KeyView {
            traits: &self.traits,
            tokens: &self.tokens,
            extra_ids: None,
            mm_keys: MmKeys::NONE,
        }
    }
}

impl std::fmt::Debug for TextTail {
    /// How much it is, not what.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TextTail({} tokens)", self.tokens.len())
    }
}
