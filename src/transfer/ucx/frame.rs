//! What travels in front of the bytes: the header of each active message, and the address.
//!
//! A header is 36 bytes, little-endian, then the caller's own header if it is short:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | [`MAGIC`]; its last byte is the version |
//! | 4 | [`Kind`] |
//! | 5 | 1 if the sender is the side that connected |
//! | 6..8 | zero |
//! | 8..24 | the connection's token, drawn at random by the side that connected |
//! | 24..32 | how many messages this side sent on the connection before |
//! | 32..36 | bytes of the caller's header that follow |
//!
//! An address is a magic, a length, a checksum against accidents, and UCX's own worker address,
//! which only UCX can read: it must come from a trusted place.

const MAGIC: [u8; 4] = *b"kvU\x01";
const ADDRESS_MAGIC: [u8; 8] = *b"kvh-ucx\x01";
const ADDRESS_PREFIX_BYTES: usize = 8 + 4 + 8;

/// Bytes of a header without the caller's own.
pub(super) const HEADER_BYTES: usize = 36;

/// The caller's own header rides in the active message's header up to this length.
pub(super) const MAX_INLINE_BYTES: usize = 220;

/// Longest worker address; real ones have some hundred bytes for each network device.
pub(super) const MAX_ADDRESS_BYTES: usize = 64 << 10;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// First of a connection: the payload is the worker address to answer to.
    Hello = 1,
    /// A control message.
    Message = 2,
    /// The header of the next data, where it is too long to ride along.
    LongHeader = 3,
    /// Data.
    Data = 4,
    /// Last of a connection.
    Bye = 5,
}

/// Names one direction of one connection, among all of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Direction {
    /// Unguessable; known to the two sides only.
    pub token: [u8; 16],
    /// Whether the sender is the side that connected.
    pub from_connector: bool,
}

/// The header of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub direction: Direction,
    pub sequence: u64,
    pub inline: Vec<u8>,
}

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.inline.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[self.kind as u8, u8::from(self.direction.from_connector), 0, 0]);
        bytes.extend_from_slice(&self.direction.token);
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        // At most MAX_INLINE_BYTES.
        bytes.extend_from_slice(&(self.inline.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.inline);
        bytes
    }

    /// `None` for anything that `encode` did not write.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, inline) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let kind = match fixed[4] {
            1 => Kind::Hello,
            2 => Kind::Message,
            3 => Kind::LongHeader,
            4 => Kind::Data,
            5 => Kind::Bye,
            _ => return None,
        };
        let inline_bytes = u32::from_le_bytes(fixed[32..36].try_into().ok()?);
        let is_sound = fixed[..4] == MAGIC
            && fixed[5] <= 1
            && fixed[6..8] == [0, 0]
            && inline.len() <= MAX_INLINE_BYTES
            && inline.len() == inline_bytes as usize
            && (inline.is_empty() || kind == Kind::Data);
        is_sound.then_some(Self {
            kind,
            direction: Direction {
                token: fixed[8..24].try_into().ok()?,
                from_connector: fixed[5] == 1,
            },
            sequence: u64::from_le_bytes(fixed[24..32].try_into().ok()?),
            inline: inline.to_vec(),
        })
    }
}

/// A worker address as this transport's address.
pub(super) fn encode_address(worker_address: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ADDRESS_PREFIX_BYTES + worker_address.len());
    bytes.extend_from_slice(&ADDRESS_MAGIC);
    bytes.extend_from_slice(&(worker_address.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(worker_address).to_le_bytes());
    bytes.extend_from_slice(worker_address);
    bytes
}

/// The worker address in a transport's address, or what is wrong with it.
pub(super) fn decode_address(address: &[u8]) -> Result<&[u8], String> {
    let (prefix, worker_address) = address
        .split_first_chunk::<ADDRESS_PREFIX_BYTES>()
        .ok_or_else(|| format!("{} bytes are too few", address.len()))?;
    if prefix[..8] != ADDRESS_MAGIC {
        return Err("it does not start as one of format 1".to_owned());
    }
    let expected = u32::from_le_bytes([prefix[8], prefix[9], prefix[10], prefix[11]]) as usize;
    if worker_address.len() != expected
        || worker_address.is_empty()
        || worker_address.len() > MAX_ADDRESS_BYTES
    {
        return Err(format!("it announces {expected} bytes and has {}", worker_address.len()));
    }
    if prefix[12..] != checksum(worker_address).to_le_bytes() {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(worker_address)
}

/// FNV-1a: finds damage by accident, and is no protection against anybody.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            kind: Kind::Data,
            direction: Direction { token: [7; 16], from_connector: true },
            sequence: u64::MAX - 1,
            inline: b"what it is".to_vec(),
        }
    }

    #[test]
    fn a_header_comes_back() {
        assert_eq!(Header::decode(&sample().encode()), Some(sample()));
    }

    #[test]
    fn a_header_cut_anywhere_or_too_long_is_refused() {
        let bytes = sample().encode();
        for len in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..len]), None, "{len} bytes");
        }
        let longer = [bytes, vec![0]].concat();
        assert_eq!(Header::decode(&longer), None);
    }

    #[test]
    fn every_fixed_field_is_judged() {
        for (at, value) in [(0, 0), (3, 2), (4, 0), (4, 6), (5, 2), (6, 1), (32, 255)] {
            let mut bytes = sample().encode();
            bytes[at] = value;
            assert_eq!(Header::decode(&bytes), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn only_data_carries_a_header_of_the_caller() {
        let hello = Header { kind: Kind::Hello, ..sample() };
        assert_eq!(Header::decode(&hello.encode()), None);
    }

    #[test]
    fn an_address_comes_back_and_damage_shows() {
        let address = encode_address(b"worker");
        assert_eq!(decode_address(&address), Ok(&b"worker"[..]));
        for len in 0..address.len() {
            assert!(decode_address(&address[..len]).is_err(), "{len} bytes");
        }
        for at in 0..address.len() {
            let mut damaged = address.clone();
            damaged[at] ^= 0x10;
            assert!(decode_address(&damaged).is_err(), "byte {at}");
        }
        assert!(decode_address(&encode_address(b"")).is_err());
    }
}
