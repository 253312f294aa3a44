//! Signed hints: whether a hint that came over HTTP was made by a holder of one of the host's keys.
//!
//! ```text
//! raw ─ auth: where the top-level `auth` lies ─ key ring: key, alg, exp, aud
//!     ─ mac: HMAC over the canonical form, `auth` in place, its `mac` cut out ─> Authentic
//! ```
//!
//! | file | subject |
//! |---|---|
//! | [`auth`] | finds `auth` and its members in the raw text |
//! | [`mac`] | streams the signed bytes into an HMAC |
//! | [`key_ring`] | the host's keys and rules; checks and makes signatures |
//! | [`replay`] | how often one signed hint was admitted |
//! | [`place`] | where a fault lies, for explanations |
//!
//! What is signed is the canonical form, so blanks and escapes may change on the way and nothing
//! else may. The signed bytes are never stored: they are hashed as the scan finds them, which is
//! why a hint may be longer than a canonical form is allowed to be and still be told from a forgery.
//!
//! Guards: a name spelled with escapes is the name it says; an `auth` or a part of it that comes
//! twice, or a part that we do not know, is no signature; the comparison takes the same time
//! wherever two codes differ.
//! Never does: interpret anything of the envelope but `auth`; tell a sender what was wrong.

mod auth;
pub mod key_ring;
mod mac;
mod place;
mod replay;

pub use replay::Code;

pub use key_ring::{KeyRing, KeyRingError, Rules, SignError, Signing};

pub(super) use place::place_of;

use key_ring::Authentic;

/// Why a hint does not count as signed. All of these are the verdict `untrusted`; only the host's
/// metrics tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum SignatureFault {
    /// Too long to be parsed.
    TooLong,
    /// Not one JSON text.
    NotJson,
    /// No `auth`, or not of the right shape.
    NoAuth,
    /// A key that the ring does not hold.
    UnknownKey,
    /// Another algorithm than HS256.
    Algorithm,
    /// Another code than the key gives.
    WrongMac,
    /// Past `exp`, or none where the ring asks for one.
    Expired,
    /// For somebody else.
    Audience,
    /// Admitted as often as the ring allows.
    Replayed,
    /// No room to remember one more hint.
    ReplayTableFull,
}

impl SignatureFault {
    /// Its stable name, the same as in the metrics.
    pub fn name(self) -> &'static str {
        match self {
            SignatureFault::TooLong => "too_long",
            SignatureFault::NotJson => "not_json",
            SignatureFault::NoAuth => "no_auth",
            SignatureFault::UnknownKey => "unknown_key",
            SignatureFault::Algorithm => "algorithm",
            SignatureFault::WrongMac => "wrong_mac",
            SignatureFault::Expired => "expired",
            SignatureFault::Audience => "audience",
            SignatureFault::Replayed => "replayed",
            SignatureFault::ReplayTableFull => "replay_table_full",
        }
    }
}

/// What a ring says of a hint at one time.
#[derive(Debug, Clone, Copy)]
pub struct Verifier<'r> {
    /// The host's keys and rules.
    pub ring: &'r KeyRing,
    /// Now, in seconds since 1970-01-01 UTC.
    pub now_unix_seconds: u64,
}

impl Verifier<'_> {
    /// Whether `raw` is one JSON text that a holder of a key signed.
    pub(super) fn authentic(
        &self,
        raw: &[u8],
        stack: &mut super::scan::ContainerStack,
    ) -> Result<Result<Authentic, SignatureFault>, std::collections::TryReserveError> {
        self.ring.authentic(raw, self.now_unix_seconds, stack)
    }

    /// Counts one admission of an authentic hint.
    pub(super) fn admit_once(&self, authentic: &Authentic) -> Result<(), SignatureFault> {
        self.ring.admit_once(authentic, self.now_unix_seconds)
    }

    /// What [`Verifier::admit_once`] would say; nothing is counted.
    pub(super) fn would_admit(&self, authentic: &Authentic) -> Result<(), SignatureFault> {
        self.ring.would_admit(authentic, self.now_unix_seconds)
    }
}
