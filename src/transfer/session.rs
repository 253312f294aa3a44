//! Proof, both ways, that a peer holds one of the host's keys: the messages, and what is proven.
//!
//! ```text
//! destination                              source
//!   hello      key id, its nonce     ->
//!                                    <-    its nonce, its code        challenge
//!   proof      its code              ->
//!                 ... then the first request for a name ...
//! refused      (instead of any answer)     <-
//! ```
//!
//! A code is an HMAC over who makes it, both nonces, and the address at which the destination
//! reached the source. So a code is of no use to the other role, in another session, or at another
//! source's address.
//!
//! Guards: nonces come from the system; codes are compared in the same time wherever they differ.
//! Never does: encrypt, or vouch for what the transport carries afterwards.

use super::wire::{self, Reader, WireError};
use crate::hint::signature::{Code, KeyRing};

/// The longest id of a key.
const MAX_KEY_ID_BYTES: usize = 128;

const MARK: [u8; 2] = *b"KA";
const VERSION: u8 = 1;

const KIND_HELLO: u8 = 1;
const KIND_CHALLENGE: u8 = 2;
const KIND_PROOF: u8 = 3;
const KIND_REFUSED: u8 = 4;

/// Random, and new in each session.
pub type Nonce = [u8; 32];

/// One message of a session's beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionMessage {
    /// Destination to source: the key that it will prove to have.
    Hello {
        /// The key's id.
        key_id: String,
        /// The destination's.
        nonce: Nonce,
    },
    /// Source to destination: the source's proof.
    Challenge {
        /// The source's.
        nonce: Nonce,
        /// The source's code.
        code: Code,
    },
    /// Destination to source: the destination's proof.
    Proof {
        /// The destination's code.
        code: Code,
    },
    /// Source to destination: there will be no session.
    Refused,
}

impl SessionMessage {
    /// Whether bytes are meant as such a message.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&MARK)
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MARK.to_vec();
        out.push(VERSION);
        match self {
            Self::Hello { key_id, nonce } => {
                out.push(KIND_HELLO);
                out.extend_from_slice(nonce);
                wire::put_bytes(&mut out, key_id.as_bytes());
            }
            Self::Challenge { nonce, code } => {
                out.push(KIND_CHALLENGE);
                out.extend_from_slice(nonce);
                out.extend_from_slice(code);
            }
            Self::Proof { code } => {
                out.push(KIND_PROOF);
                out.extend_from_slice(code);
            }
            Self::Refused => out.push(KIND_REFUSED),
        }
        out
    }

    /// Reads a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        if reader.array::<2>()? != MARK {
            return Err(WireError::NotOurs);
        }
        match reader.u8()? {
            VERSION => {}
            found => return Err(WireError::OtherMajor { found, ours: VERSION }),
        }
        let message = match reader.u8()? {
            KIND_HELLO => {
                let nonce = reader.array()?;
                let key_id = std::str::from_utf8(reader.bytes("key id", MAX_KEY_ID_BYTES)?);
                let key_id = key_id.map_err(|_| WireError::BadValue { what: "key id" })?;
                Self::Hello { key_id: key_id.to_owned(), nonce }
            }
            KIND_CHALLENGE => Self::Challenge { nonce: reader.array()?, code: reader.array()? },
            KIND_PROOF => Self::Proof { code: reader.array()? },
            KIND_REFUSED => Self::Refused,
            _ => return Err(WireError::BadValue { what: "message kind" }),
        };
        reader.end()?;
        Ok(message)
    }
}

/// Who makes a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Who asks for blocks.
    Destination,
    /// Who holds them.
    Source,
}

/// What both sides put into their codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    /// The key that both prove to have.
    pub key_id: String,
    /// The destination's nonce.
    pub destination: Nonce,
    /// The source's nonce.
    pub source: Nonce,
}

/// The host's keys, as sessions use them.
pub trait SessionKeys: Send + Sync {
    /// The HMAC of some bytes with a key; `None` when there is no such key.
    fn code(&self, key_id: &str, parts: &[&[u8]]) -> Option<Code>;

    /// Whether `code` is that HMAC, compared in constant time.
    fn verifies(&self, key_id: &str, parts: &[&[u8]], code: &Code) -> bool;
}

impl SessionKeys for KeyRing {
    fn code(&self, key_id: &str, parts: &[&[u8]]) -> Option<Code> {
        self.code_of(key_id, parts)
    }

    fn verifies(&self, key_id: &str, parts: &[&[u8]], code: &Code) -> bool {
        self.is_code_of(key_id, parts, code)
    }
}

impl Transcript {
    /// The code of one side, which reached, or is reached at, `address`; `None` without the key.
    pub fn code(&self, keys: &dyn SessionKeys, role: Role, address: &[u8]) -> Option<Code> {
        let length = address_length(address);
        keys.code(&self.key_id, &self.parts(role, &length, address))
    }

    /// Whether `code` is the one of that side.
    pub fn verifies(
        &self,
        keys: &dyn SessionKeys,
        role: Role,
        address: &[u8],
        code: &Code,
    ) -> bool {
        let length = address_length(address);
        keys.verifies(&self.key_id, &self.parts(role, &length, address), code)
    }

    fn parts<'a>(&'a self, role: Role, length: &'a [u8; 4], address: &'a [u8]) -> [&'a [u8]; 5] {
        // Of one length, and unlike the beginning of anything else that keys sign.
        let label: &[u8; 32] = match role {
            Role::Destination => b"kvhints session v1 destination\0\0",
            Role::Source => b"kvhints session v1 source\0\0\0\0\0\0\0",
        };
        [label, &self.destination, &self.source, length, address]
    }
}

/// Addresses are bounded far below 4 GiB.
fn address_length(address: &[u8]) -> [u8; 4] {
    (address.len() as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint::signature::Rules;

    fn ring(secret: u8) -> KeyRing {
        let ring = KeyRing::new(Rules::default()).unwrap();
        ring.add("k", &[secret; 32]).unwrap();
        ring
    }

    fn transcript() -> Transcript {
        Transcript { key_id: "k".to_owned(), destination: [1; 32], source: [2; 32] }
    }

    #[test]
    fn messages_read_back_and_nothing_else_does() {
        let messages = [
            SessionMessage::Hello { key_id: "pool-a".to_owned(), nonce: [7; 32] },
            SessionMessage::Challenge { nonce: [8; 32], code: [9; 32] },
            SessionMessage::Proof { code: [9; 32] },
            SessionMessage::Refused,
        ];
        for message in messages {
            let bytes = message.encode();
            assert!(SessionMessage::is_one(&bytes));
            assert_eq!(SessionMessage::decode(&bytes).as_ref(), Ok(&message));
            for len in 0..bytes.len() {
                assert_eq!(SessionMessage::decode(&bytes[..len]), Err(WireError::Truncated));
            }
            let longer = [&bytes[..], b"x"].concat();
            assert_eq!(SessionMessage::decode(&longer), Err(WireError::TrailingBytes));
            let mut other = bytes.clone();
            other[2] = 2;
            let error = WireError::OtherMajor { found: 2, ours: 1 };
            assert_eq!(SessionMessage::decode(&other), Err(error));
        }
        let bad = WireError::BadValue { what: "message kind" };
        assert_eq!(SessionMessage::decode(b"KA\x01\x05"), Err(bad));
        assert_eq!(SessionMessage::decode(b"KT\x01\x01"), Err(WireError::NotOurs));
        let mut hello = b"KA\x01\x01".to_vec();
        hello.extend_from_slice(&[0; 32]);
        hello.extend_from_slice(&129u32.to_le_bytes());
        hello.extend_from_slice(&[b'x'; 129]);
        let error = WireError::TooMuch { what: "key id", limit: 128 };
        assert_eq!(SessionMessage::decode(&hello), Err(error));
    }

    #[test]
    fn a_code_is_of_no_use_in_any_other_place() {
        let keys = ring(5);
        let of = transcript();
        let code = of.code(&keys, Role::Source, b"here").unwrap();
        assert!(of.verifies(&keys, Role::Source, b"here", &code));
        assert!(!of.verifies(&keys, Role::Destination, b"here", &code), "the other role");
        assert!(!of.verifies(&keys, Role::Source, b"there", &code), "another source");
        assert!(!of.verifies(&ring(6), Role::Source, b"here", &code), "another key");
        let swapped = Transcript { destination: [2; 32], source: [1; 32], ..of.clone() };
        assert!(!swapped.verifies(&keys, Role::Source, b"here", &code), "swapped nonces");
        let other = Transcript { source: [3; 32], ..of.clone() };
        assert!(!other.verifies(&keys, Role::Source, b"here", &code), "another session");
        let unknown = Transcript { key_id: "other".to_owned(), ..of };
        assert_eq!(unknown.code(&keys, Role::Source, b"here"), None);
        assert!(!unknown.verifies(&keys, Role::Source, b"here", &code));
    }
}
