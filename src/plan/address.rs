//! Bounds on the addresses that an endpoint may lead to.
//!
//! A listed name is resolved by servers that are not ours, and may resolve to another place
//! tomorrow. The bounds are asked with the very address that is then connected to, after resolving.
//! IPv4 addresses in IPv6 clothes are unmapped first, in questions and in ranges alike.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::MAX_NAME_BYTES;

/// A set of CIDR ranges, or no bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressBounds {
    /// `None`: every address that a peer can have.
    ranges: Option<Vec<IpNet>>,
}

/// Text that is not a CIDR range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressBoundsError {
    /// Neither an address nor a range.
    #[error("expected an address or a CIDR range such as 10.0.0.0/8, found {0:?}")]
    NotARange(String),
    /// Which of the two is meant cannot be known.
    #[error("expected a range without host bits, found {0:?}; write {1}, or the address alone")]
    HostBits(String, String),
    /// More ranges than one endpoint needs.
    #[error("expected at most {max} ranges, found {0}", max = AddressBounds::MAX_RANGES)]
    TooMany(usize),
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
}

impl AddressBounds {
    /// Most ranges of one endpoint.
    pub const MAX_RANGES: usize = 256;

    /// Every address that a peer can have.
    pub fn unbounded() -> Self {
        Self { ranges: None }
    }

    /// Only addresses within these ranges; with no range, none.
    pub fn within<T: AsRef<str>>(ranges: &[T]) -> Result<Self, AddressBoundsError> {
        if ranges.len() > Self::MAX_RANGES {
            return Err(AddressBoundsError::TooMany(ranges.len()));
        }
        let mut read = Vec::new();
        read.try_reserve_exact(ranges.len()).map_err(|_| AddressBoundsError::NoMemory)?;
        for range in ranges {
            read.push(read_range(range.as_ref())?);
        }
        Ok(Self { ranges: Some(read) })
    }

    /// Whether this address may be connected to. Addresses that name no single peer (unspecified,
    /// multicast, broadcast) never may.
    pub fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
        if address.is_unspecified() || address.is_multicast() || is_broadcast {
            return false;
        }
        match &self.ranges {
            None => true,
            Some(ranges) => ranges.iter().any(|range| range.contains(&address)),
        }
    }
}

fn read_range(text: &str) -> Result<IpNet, AddressBoundsError> {
    let range = text
        .parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| AddressBoundsError::NotARange(text.chars().take(MAX_NAME_BYTES).collect()))?;
    if range.trunc() != range {
        return Err(AddressBoundsError::HostBits(text.to_owned(), range.trunc().to_string()));
    }
    Ok(unmapped(range))
}

/// `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
fn unmapped(range: IpNet) -> IpNet {
    const MAPPED_PREFIX_BITS: u8 = 96;
    let IpNet::V6(v6) = range else { return range };
    let v4 = v6.network().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(MAPPED_PREFIX_BITS));
    match v4.map(|(network, bits)| Ipv4Net::new(network, bits)) {
        Some(Ok(v4)) => IpNet::V4(v4),
        _ => range,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(ranges: &[&str], address: &str) -> bool {
        let address = address.parse().expect("a test's address");
        AddressBounds::within(ranges).expect("a test's ranges").allows(address)
    }

    #[test]
    fn only_addresses_inside_a_range_are_allowed() {
        let ranges = ["10.0.0.0/8", "192.168.7.7", "fd00::/8"];
        for inside in ["10.0.0.1", "10.255.255.255", "192.168.7.7", "fd12::1"] {
            assert!(allows(&ranges, inside), "{inside}");
        }
        for outside in ["11.0.0.1", "9.255.255.255", "192.168.7.8", "fe80::1", "127.0.0.1", "::1"] {
            assert!(!allows(&ranges, outside), "{outside}");
        }
        assert!(!allows(&[], "10.0.0.1"), "no range allows nothing");
    }

    #[test]
    fn mapped_addresses_are_the_addresses_they_carry() {
        assert!(allows(&["10.0.0.0/8"], "::ffff:10.1.2.3"));
        assert!(!allows(&["10.0.0.0/8"], "::ffff:127.0.0.1"));
        assert!(allows(&["::ffff:10.0.0.0/104"], "10.1.2.3"));
        assert!(!allows(&["::ffff:10.0.0.0/104"], "11.1.2.3"));
        assert!(!allows(&["::/0"], "::ffff:127.0.0.1"), "an IPv6 range holds no IPv4 address");
    }

    #[test]
    fn addresses_of_no_single_peer_are_never_allowed() {
        for nowhere in
            ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255"]
        {
            assert!(!allows(&["0.0.0.0/0", "::/0"], nowhere), "{nowhere}");
            assert!(!AddressBounds::unbounded().allows(nowhere.parse().unwrap()), "{nowhere}");
        }
        assert!(AddressBounds::unbounded().allows("203.0.113.9".parse().unwrap()));
    }

    #[test]
    fn what_is_not_a_range_is_named() {
        for bad in ["", "10.0.0.0/33", "10.0.0", "host", "10.0.0.0/-1", "::/129", " 10.0.0.0/8"] {
            let error = AddressBounds::within(&[bad]).expect_err(bad);
            assert_eq!(error, AddressBoundsError::NotARange(bad.to_owned()));
        }
        let error = AddressBounds::within(&["10.1.2.3/8"]).expect_err("host bits").to_string();
        assert!(error.contains("10.0.0.0/8"), "{error}");
        let many = vec!["10.0.0.1"; AddressBounds::MAX_RANGES + 1];
        assert_eq!(AddressBounds::within(&many), Err(AddressBoundsError::TooMany(257)));
    }
}
