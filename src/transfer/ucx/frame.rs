//! What travels in front of the bytes: the header of each active message; and the address.
//!
//! A header is 20 bytes, little-endian, then the caller's own header if it is short:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | [`MAGIC`]; its last byte is the version |
//! | 4 | [`Kind`] |
//! | 5..8 | zero |
//! | 8..16 | how many messages this side sent on the connection before |
//! | 16..20 | bytes of the caller's header that follow |
//!
//! An address says where the transport listens:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | [`ADDRESS_MAGIC`]; its last byte is the version |
//! | 8 | 4: which kind of IP address |
//! | 9 | zero |
//! | 10..12 | port, little-endian |
//! | 12..16 | the IP address in network order |
//!
//! Only IPv4: where a wire has an IPv4 address, UCX 1.13 answers a caller over IPv6 by writing past
//! the end of its own memory.

use std::net::{Ipv4Addr, SocketAddrV4};

const MAGIC: [u8; 4] = *b"kvU\x03";
const ADDRESS_MAGIC: [u8; 8] = *b"kvh-ucx\x03";
const ADDRESS_BYTES: usize = 16;

/// Bytes of a header without the caller's own.
pub(super) const HEADER_BYTES: usize = 20;

/// The caller's own header rides in the active message's header up to this length.
pub(super) const MAX_INLINE_BYTES: usize = 220;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A control message.
    Message = 1,
    /// The header of the next data, where it is too long to ride along.
    LongHeader = 2,
    /// Data.
    Data = 3,
    /// Last of a connection.
    Bye = 4,
    /// These five are told between transports of one machine: see [`super::neighbour`].
    Machine = 5,
    Segment = 6,
    Reached = 7,
    Placed = 8,
    Taken = 9,
}

/// The header of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub sequence: u64,
    pub inline: Vec<u8>,
}

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.inline.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[self.kind as u8, 0, 0, 0]);
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
            1 => Kind::Message,
            2 => Kind::LongHeader,
            3 => Kind::Data,
            4 => Kind::Bye,
            5 => Kind::Machine,
            6 => Kind::Segment,
            7 => Kind::Reached,
            8 => Kind::Placed,
            9 => Kind::Taken,
            _ => return None,
        };
        let inline_bytes = u32::from_le_bytes(fixed[16..20].try_into().ok()?);
        let is_sound = fixed[..4] == MAGIC
            && fixed[5..8] == [0, 0, 0]
            && inline.len() <= MAX_INLINE_BYTES
            && inline.len() == inline_bytes as usize
            && (inline.is_empty() || kind == Kind::Data);
        is_sound.then_some(Self {
            kind,
            sequence: u64::from_le_bytes(fixed[8..16].try_into().ok()?),
            inline: inline.to_vec(),
        })
    }
}

/// Where a transport listens, as its address.
pub(super) fn encode_address(listening: SocketAddrV4) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ADDRESS_BYTES);
    bytes.extend_from_slice(&ADDRESS_MAGIC);
    bytes.extend_from_slice(&[4, 0]);
    bytes.extend_from_slice(&listening.port().to_le_bytes());
    bytes.extend_from_slice(&listening.ip().octets());
    bytes
}

/// Where the transport of that address listens, or what is wrong with the address.
pub(super) fn decode_address(address: &[u8]) -> Result<SocketAddrV4, String> {
    let Some((prefix, rest)) = address.split_first_chunk::<12>() else {
        return Err(format!("{} bytes are too few", address.len()));
    };
    if prefix[..8] != ADDRESS_MAGIC {
        return Err("it does not start as one of format 3".to_owned());
    }
    let octets: [u8; 4] = match (prefix[8], prefix[9], rest.try_into()) {
        (4, 0, Ok(octets)) => octets,
        _ => return Err("expected an IPv4 address in it, found something else".to_owned()),
    };
    let ip = Ipv4Addr::from(octets);
    let port = u16::from_le_bytes([prefix[10], prefix[11]]);
    if port == 0 || ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() {
        return Err(format!("nobody can listen at {ip}:{port}"));
    }
    Ok(SocketAddrV4::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header { kind: Kind::Data, sequence: u64::MAX - 1, inline: b"what it is".to_vec() }
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
        for (at, value) in [(0, 0), (3, 1), (4, 0), (4, 10), (5, 1), (6, 1), (7, 1), (16, 255)] {
            let mut bytes = sample().encode();
            bytes[at] = value;
            assert_eq!(Header::decode(&bytes), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn only_data_carries_a_header_of_the_caller() {
        let message = Header { kind: Kind::Message, ..sample() };
        assert_eq!(Header::decode(&message.encode()), None);
    }

    #[test]
    fn an_address_comes_back_and_its_bytes_stay_as_documented() {
        let listening: SocketAddrV4 = "10.1.2.3:258".parse().unwrap();
        let address = encode_address(listening);
        assert_eq!(address, b"kvh-ucx\x03\x04\x00\x02\x01\x0a\x01\x02\x03");
        assert_eq!(decode_address(&address), Ok(listening));
    }

    #[test]
    fn an_address_cut_anywhere_changed_in_form_or_of_nobody_is_refused() {
        let address = encode_address("10.1.2.3:258".parse().unwrap());
        for len in 0..address.len() {
            assert!(decode_address(&address[..len]).is_err(), "{len} bytes");
        }
        assert!(decode_address(&[&address[..], &[0]].concat()).is_err());
        for at in 0..10 {
            let mut damaged = address.clone();
            damaged[at] ^= 2;
            assert!(decode_address(&damaged).is_err(), "byte {at}");
        }
        let six = [&address[..8], &[6, 0, 1, 1], &[1; 16]].concat();
        assert!(decode_address(&six).is_err());
        for nobody in ["10.1.2.3:0", "0.0.0.0:1", "224.0.0.1:1", "255.255.255.255:1"] {
            let address = encode_address(nobody.parse().unwrap());
            assert!(decode_address(&address).is_err(), "{nobody}");
        }
    }
}
