//! The host's keys and its rules for signed hints.
//!
//! Keys come and go while hints are judged: a new one is added before its first signer uses it, an
//! old one removed after its last hint has expired. Each lock is held for a look-up or a count,
//! never during a scan or a hash.

use std::collections::TryReserveError;
use std::fmt;

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;
use hmac::{Hmac, Mac};
use parking_lot::{Mutex, RwLock};
use sha2::Sha256;

use super::auth::{Auth, AuthFinder};
use super::mac::MacStream;
use super::replay::{Code, ReplayTable};
use super::SignatureFault;
use crate::hint::limits::{
    AUDIENCE_MAX_BYTES, CANONICAL_MAX_BYTES, KEYS_MAX, KEY_ID_MAX_BYTES, NONCE_MAX_BYTES,
    RAW_MAX_BYTES, REPLAY_ENTRIES_DEFAULT, REPLAY_ENTRIES_MAX, SECRET_MAX_BYTES, SECRET_MIN_BYTES,
};
use crate::hint::scan::{scan, text, ContainerStack, Number, ScanError, Text};
use crate::hint::Snapshot;

/// The only algorithm.
const ALGORITHM: &str = "HS256";

/// A code as base64url without padding.
const CODE_TEXT_BYTES: usize = 43;

/// What a ring asks of a signed hint beyond a good code.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// The `aud` that hints must name; any or none if this is `None`.
    pub audience: Option<String>,
    /// Hints without `exp` count too, for ever.
    pub expiry_is_optional: bool,
    /// How often one hint is admitted before it expires; any number of times if 0.
    pub admissions_max: u32,
    /// How many hints are remembered for that; 0 is 65,536.
    pub replay_entries_max: usize,
}

/// Why a ring was not made or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingError {
    /// Counting admissions needs an end of counting.
    #[error(
        "expected hints to expire where their admissions are counted, found expiry to be optional: \
         require exp, or do not count admissions"
    )]
    CountsForEver,
    /// More entries than a table may have.
    #[error("expected at most {REPLAY_ENTRIES_MAX} replay entries, found {found}: ask for fewer")]
    TooManyEntries {
        /// How many were asked for.
        found: usize,
    },
    /// The text is too long.
    #[error(
        "expected an audience of at most {AUDIENCE_MAX_BYTES} bytes, found {found}: shorten it"
    )]
    LongAudience {
        /// Its length.
        found: usize,
    },
    /// The name of a key is too long, or empty.
    #[error("expected a key id of 1 to {KEY_ID_MAX_BYTES} bytes, found {found}: choose another")]
    KeyId {
        /// Its length.
        found: usize,
    },
    /// The secret is too short to be safe, or longer than any needs to be.
    #[error(
        "expected a secret of {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes, found {found}: take \
         32 random bytes"
    )]
    Secret {
        /// Its length.
        found: usize,
    },
    /// A key of this name is there.
    #[error("expected a new key id, found one that the ring holds: remove that key first")]
    Known,
    /// No room for one more key.
    #[error("expected at most {KEYS_MAX} keys, found one more: remove keys that nobody uses")]
    TooManyKeys,
}

/// What a signature says beside the envelope.
#[derive(Debug, Clone, Copy, Default)]
pub struct Signing<'a> {
    /// The key to sign with.
    pub key_id: &'a str,
    /// When the hint expires, in seconds since 1970-01-01 UTC.
    pub expiry_unix_seconds: Option<u64>,
    /// For whom the hint is.
    pub audience: Option<&'a str>,
    /// What makes two signatures of the same envelope differ.
    pub nonce: Option<&'a str>,
}

/// Why an envelope was not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// There is no such key.
    #[error("expected the id of a key in the ring, found another: add the key first")]
    UnknownKey,
    /// It has an `auth`.
    #[error("expected an envelope without auth, found one with it: sign the envelope before that")]
    HasAuth,
    /// A text is too long.
    #[error(
        "expected an audience of at most {AUDIENCE_MAX_BYTES} and a nonce of at most \
         {NONCE_MAX_BYTES} bytes, found a longer one: shorten it"
    )]
    LongText,
    /// The ring itself would refuse it.
    #[error("expected an expiry, found none, and the ring asks for one: give one")]
    NoExpiry,
    /// No room for `auth`.
    #[error(
        "expected an envelope of at most {CANONICAL_MAX_BYTES} bytes with its auth, found \
         {found_bytes}: name fewer hashes"
    )]
    TooLong {
        /// The length with `auth`.
        found_bytes: usize,
    },
    /// Memory could not be had.
    #[error("no memory to sign an envelope")]
    NoMemory(#[from] TryReserveError),
}

/// A hint whose code is right.
#[derive(Debug, Clone, Copy)]
pub struct Authentic {
    code: Code,
    expiry_unix_seconds: u64,
}

struct Key {
    id: String,
    /// The code's state after the secret; the secret itself is not kept.
    keyed: Hmac<Sha256>,
}

/// Keys by name, and the rules. May be used from several threads.
pub struct KeyRing {
    rules: Rules,
    keys: RwLock<Vec<Key>>,
    replay: Option<Mutex<ReplayTable>>,
}

impl KeyRing {
    /// A ring without keys: trusts nothing.
    pub fn new(rules: Rules) -> Result<Self, KeyRingError> {
        let audience_bytes = rules.audience.as_ref().map_or(0, String::len);
        if audience_bytes > AUDIENCE_MAX_BYTES {
            return Err(KeyRingError::LongAudience { found: audience_bytes });
        }
        if rules.replay_entries_max > REPLAY_ENTRIES_MAX {
            return Err(KeyRingError::TooManyEntries { found: rules.replay_entries_max });
        }
        if rules.admissions_max > 0 && rules.expiry_is_optional {
            return Err(KeyRingError::CountsForEver);
        }
        let replay = (rules.admissions_max > 0).then(|| {
            let entries_max = match rules.replay_entries_max {
                0 => REPLAY_ENTRIES_DEFAULT,
                chosen => chosen,
            };
            Mutex::new(ReplayTable::new(entries_max, rules.admissions_max))
        });
        Ok(Self { rules, keys: RwLock::new(Vec::new()), replay })
    }

    /// The HMAC-SHA-256 of the parts, one after the other, with a key; `None` when there is no such
    /// key. Whoever signs something else than hints begins it unlike a hint, which is a JSON text.
    pub fn code_of(&self, key_id: &str, parts: &[&[u8]]) -> Option<Code> {
        Some(self.keyed_with(key_id, parts)?.finalize().into_bytes().into())
    }

    /// Whether `code` is [`KeyRing::code_of`] the parts, compared in constant time.
    pub fn is_code_of(&self, key_id: &str, parts: &[&[u8]], code: &Code) -> bool {
        self.keyed_with(key_id, parts).is_some_and(|hmac| hmac.verify_slice(code).is_ok())
    }

    fn keyed_with(&self, key_id: &str, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let keys = self.keys.read();
        let mut hmac = keys.iter().find(|key| key.id == key_id)?.keyed.clone();
        drop(keys);
        parts.iter().for_each(|part| hmac.update(part));
        Some(hmac)
    }

    /// Adds a key; hints signed with it count from now on.
    pub fn add(&self, id: &str, secret: &[u8]) -> Result<(), KeyRingError> {
        if id.is_empty() || id.len() > KEY_ID_MAX_BYTES {
            return Err(KeyRingError::KeyId { found: id.len() });
        }
        if !(SECRET_MIN_BYTES..=SECRET_MAX_BYTES).contains(&secret.len()) {
            return Err(KeyRingError::Secret { found: secret.len() });
        }
        let keyed = Hmac::new_from_slice(secret)
            .map_err(|_| KeyRingError::Secret { found: secret.len() })?;
        let mut keys = self.keys.write();
        if keys.iter().any(|key| key.id == id) {
            return Err(KeyRingError::Known);
        }
        if keys.len() >= KEYS_MAX {
            return Err(KeyRingError::TooManyKeys);
        }
        keys.push(Key { id: id.to_owned(), keyed });
        Ok(())
    }

    /// Removes a key; hints signed with it count no more. Whether it was there.
    pub fn remove(&self, id: &str) -> bool {
        let mut keys = self.keys.write();
        let before = keys.len();
        keys.retain(|key| key.id != id);
        keys.len() < before
    }

    /// Whether `raw` is one JSON text that a holder of a key signed, by the ring's rules.
    pub(super) fn authentic(
        &self,
        raw: &[u8],
        now_unix_seconds: u64,
        stack: &mut ContainerStack,
    ) -> Result<Result<Authentic, SignatureFault>, TryReserveError> {
        if raw.len() > RAW_MAX_BYTES {
            return Ok(Err(SignatureFault::TooLong));
        }
        let mut finder = AuthFinder::new(raw);
        match scan(raw, stack, &mut finder) {
            Ok(()) => {}
            Err(ScanError::NotJson(_)) => return Ok(Err(SignatureFault::NotJson)),
            Err(ScanError::NoMemory(error)) => return Err(error),
        }
        let Some(auth) = finder.finish() else { return Ok(Err(SignatureFault::NoAuth)) };
        let (code, expiry_unix_seconds, keyed) = match self.claimed(raw, &auth, now_unix_seconds) {
            Ok(claimed) => claimed,
            Err(fault) => return Ok(Err(fault)),
        };
        let mut stream = MacStream::new(raw, auth.mac_cut, keyed);
        match scan(raw, stack, &mut stream) {
            Ok(()) => {}
            // The first scan read the same text.
            Err(ScanError::NotJson(_)) => return Ok(Err(SignatureFault::NotJson)),
            Err(ScanError::NoMemory(error)) => return Err(error),
        }
        // Compares in constant time.
        Ok(match stream.finish().verify_slice(&code) {
            Ok(()) => Ok(Authentic { code, expiry_unix_seconds }),
            Err(_) => Err(SignatureFault::WrongMac),
        })
    }

    /// What `auth` claims, if the ring would accept it with the right code: its code, when it
    /// expires, and the key to compute the code with.
    fn claimed(
        &self,
        raw: &[u8],
        auth: &Auth,
        now_unix_seconds: u64,
    ) -> Result<(Code, u64, Hmac<Sha256>), SignatureFault> {
        let (Some(key_id), Some(algorithm), Some(mac)) = (auth.key_id, auth.algorithm, auth.mac)
        else {
            return Err(SignatureFault::NoAuth);
        };
        if !algorithm.equals(raw, ALGORITHM.as_bytes()) {
            return Err(SignatureFault::Algorithm);
        }
        let expiry_unix_seconds = match auth.expiry {
            Some(number) => whole_seconds(raw, number).ok_or(SignatureFault::NoAuth)?,
            None if self.rules.expiry_is_optional => u64::MAX,
            None => return Err(SignatureFault::Expired),
        };
        if expiry_unix_seconds <= now_unix_seconds {
            return Err(SignatureFault::Expired);
        }
        if let Some(expected) = &self.rules.audience {
            let is_ours = auth.audience.is_some_and(|text| text.equals(raw, expected.as_bytes()));
            if !is_ours {
                return Err(SignatureFault::Audience);
            }
        }
        let code = code_from(mac, raw).ok_or(SignatureFault::NoAuth)?;
        let keys = self.keys.read();
        let key = keys.iter().find(|key| key_id.equals(raw, key.id.as_bytes()));
        let keyed = key.ok_or(SignatureFault::UnknownKey)?.keyed.clone();
        Ok((code, expiry_unix_seconds, keyed))
    }

    /// Counts one admission, if the ring counts them.
    pub(super) fn admit_once(
        &self,
        authentic: &Authentic,
        now_unix_seconds: u64,
    ) -> Result<(), SignatureFault> {
        let Some(replay) = &self.replay else { return Ok(()) };
        replay.lock().admit(authentic.code, authentic.expiry_unix_seconds, now_unix_seconds)
    }

    /// What [`KeyRing::admit_once`] would say; nothing is counted.
    pub(super) fn would_admit(
        &self,
        authentic: &Authentic,
        now_unix_seconds: u64,
    ) -> Result<(), SignatureFault> {
        let Some(replay) = &self.replay else { return Ok(()) };
        let expiry_unix_seconds = authentic.expiry_unix_seconds;
        replay.lock().would_admit(authentic.code, expiry_unix_seconds, now_unix_seconds)
    }

    /// The canonical form of the same envelope with an `auth` at its end.
    pub fn sign(&self, envelope: &Snapshot, signing: Signing<'_>) -> Result<Vec<u8>, SignError> {
        let json = envelope.json();
        let mut finder = AuthFinder::new(json);
        match scan(json, &mut ContainerStack::default(), &mut finder) {
            Ok(()) => {}
            Err(ScanError::NotJson(_)) => unreachable!("a snapshot's bytes were scanned before"),
            Err(ScanError::NoMemory(error)) => return Err(error.into()),
        }
        if finder.has_any() {
            return Err(SignError::HasAuth);
        }
        let is_long = |text: Option<&str>, max| text.is_some_and(|text| text.len() > max);
        if is_long(signing.audience, AUDIENCE_MAX_BYTES) || is_long(signing.nonce, NONCE_MAX_BYTES)
        {
            return Err(SignError::LongText);
        }
        if signing.expiry_unix_seconds.is_none() && !self.rules.expiry_is_optional {
            return Err(SignError::NoExpiry);
        }
        let mut hmac = {
            let keys = self.keys.read();
            let key = keys.iter().find(|key| key.id == signing.key_id);
            key.ok_or(SignError::UnknownKey)?.keyed.clone()
        };

        let mut signed = Vec::new();
        signed.try_reserve(json.len() + AUTH_ROOM_BYTES)?;
        // An envelope has members: a comma fits.
        signed.extend_from_slice(&json[..json.len() - 1]);
        signed.extend_from_slice(b",\"auth\":{\"key_id\":");
        text::quote(signing.key_id, |piece| signed.extend_from_slice(piece));
        signed.extend_from_slice(b",\"alg\":\"HS256\"");
        if let Some(expiry) = signing.expiry_unix_seconds {
            signed.extend_from_slice(b",\"exp\":");
            signed.extend_from_slice(itoa::Buffer::new().format(expiry).as_bytes());
        }
        for (name, text) in [(&b",\"aud\":"[..], signing.audience), (b",\"nonce\":", signing.nonce)]
        {
            if let Some(text) = text {
                signed.extend_from_slice(name);
                text::quote(text, |piece| signed.extend_from_slice(piece));
            }
        }
        hmac.update(&signed);
        hmac.update(b"}}");
        let code = hmac.finalize().into_bytes();
        signed.extend_from_slice(b",\"mac\":\"");
        signed.extend_from_slice(URL_SAFE_NO_PAD.encode(code).as_bytes());
        signed.extend_from_slice(b"\"}}");
        if signed.len() > CANONICAL_MAX_BYTES {
            return Err(SignError::TooLong { found_bytes: signed.len() });
        }
        Ok(signed)
    }
}

/// Room for any `auth`: each byte of a text takes at most six.
const AUTH_ROOM_BYTES: usize = 6 * (KEY_ID_MAX_BYTES + AUDIENCE_MAX_BYTES + NONCE_MAX_BYTES) + 256;

/// A number of seconds without sign, point or exponent.
fn whole_seconds(raw: &[u8], number: Number) -> Option<u64> {
    if !number.is_integer() || number.digits > number.start {
        return None;
    }
    std::str::from_utf8(&raw[number.digits..number.whole_end]).ok()?.parse().ok()
}

/// The code that `mac` says; `None` unless it is the one spelling of one code.
fn code_from(mac: Text, raw: &[u8]) -> Option<Code> {
    let inside = mac.inside(raw);
    // With escapes each character may take six bytes.
    if inside.len() > CODE_TEXT_BYTES * 6 {
        return None;
    }
    let mut said = Vec::with_capacity(inside.len());
    text::unescape(inside, &mut said).ok()?;
    if said.len() != CODE_TEXT_BYTES {
        return None;
    }
    let mut code = [0; 32];
    let len = URL_SAFE_NO_PAD.decode_slice(&said, &mut code).ok()?;
    (len == code.len()).then_some(code)
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing")
            .field("keys", &self.keys.read().len())
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
