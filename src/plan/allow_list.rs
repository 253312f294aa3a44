//! The provider's own list of destinations.
//!
//! The plan's registry and this list are configured apart and know nothing of each other: with
//! either one wide open, the other still stops a destination that it does not list. The provider
//! asks twice: for the endpoint before anything is resolved, and for the very address before
//! connecting to it.
//!
//! Its file:
//! ```json
//! {"version": 1, "endpoints": [
//!   {"endpoint": "tcp://10.0.0.7:23280"},
//!   {"endpoint": "http://kv.internal", "addresses": ["10.0.0.0/8"]}
//! ]}
//! ```
//! Without `addresses` a name may resolve to any single peer's address; with an empty list to none.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use serde::Deserialize;

use super::address::AddressBoundsError;
use super::binding_file::{read_file, List, Text, NO_MEMORY};
use super::{AddressBounds, Endpoint};

/// Endpoints that may be contacted, each with bounds on its addresses. A new one allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    endpoints: HashMap<Endpoint, AddressBounds>,
}

/// Why a destination must not be contacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// The endpoint is not on the list.
    #[error("expected an endpoint on the provider's allow-list, found another")]
    Unlisted,
    /// The endpoint is listed, but leads elsewhere than it may.
    #[error("expected an address within the bounds of the listed endpoint, found another")]
    AddressOutOfBounds,
}

/// Why a list was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllowListError {
    /// The list is full.
    #[error("expected at most {max} endpoints; remove some", max = AllowList::MAX_ENDPOINTS)]
    Full,
    /// Two entries for one endpoint.
    #[error("expected each endpoint once, found {0} again")]
    Repeated(String),
    /// A configuration file is not what it should be.
    #[error("{place}: {problem}")]
    File {
        /// Where in the file.
        place: String,
        /// What is wrong there.
        problem: String,
    },
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    version: u32,
    #[serde(borrow)]
    endpoints: List<Entry<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    #[serde(borrow)]
    endpoint: Cow<'a, str>,
    #[serde(borrow)]
    addresses: Option<List<Text<'a>>>,
}

/// The only version of the file's form.
const FILE_VERSION: u32 = 1;

impl AllowList {
    /// Most endpoints of one list.
    pub const MAX_ENDPOINTS: usize = 65_536;

    /// Nothing may be contacted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the provider contact an endpoint at addresses within `bounds`.
    pub fn allow(
        &mut self,
        endpoint: Endpoint,
        bounds: AddressBounds,
    ) -> Result<(), AllowListError> {
        if self.endpoints.contains_key(&endpoint) {
            return Err(AllowListError::Repeated(endpoint.canonical().to_owned()));
        }
        if self.endpoints.len() >= Self::MAX_ENDPOINTS {
            return Err(AllowListError::Full);
        }
        self.endpoints.try_reserve(1).map_err(|_| AllowListError::NoMemory)?;
        self.endpoints.insert(endpoint, bounds);
        Ok(())
    }

    /// Reads a list from a file's bytes; see the module for the form.
    pub fn from_json(file: &[u8]) -> Result<Self, AllowListError> {
        let at = |place: String, problem: String| match problem.starts_with(NO_MEMORY) {
            true => AllowListError::NoMemory,
            false => AllowListError::File { place, problem },
        };
        let file: File<'_> = read_file(file, at)?;
        if file.version != FILE_VERSION {
            let problem = format!("expected {FILE_VERSION}, found {}", file.version);
            return Err(at("version".to_owned(), problem));
        }
        let mut list = Self::new();
        for (index, entry) in file.endpoints.0.iter().enumerate() {
            let endpoint = Endpoint::parse(&entry.endpoint)
                .map_err(|error| at(format!("endpoints[{index}].endpoint"), error.to_string()))?;
            let bounds = match &entry.addresses {
                None => Ok(AddressBounds::unbounded()),
                Some(List(ranges)) => AddressBounds::within(ranges),
            };
            let bounds = bounds.map_err(|error| match error {
                AddressBoundsError::NoMemory => AllowListError::NoMemory,
                error => at(format!("endpoints[{index}].addresses"), error.to_string()),
            })?;
            list.allow(endpoint, bounds).map_err(|error| match error {
                AllowListError::NoMemory => error,
                error => at(format!("endpoints[{index}]"), error.to_string()),
            })?;
        }
        Ok(list)
    }

    /// Whether the endpoint may be contacted at all; ask before resolving its name. An endpoint
    /// that is an address is judged by its bounds at once.
    pub fn check(&self, endpoint: &Endpoint) -> Result<&AddressBounds, DestinationError> {
        let bounds = self.endpoints.get(endpoint).ok_or(DestinationError::Unlisted)?;
        match endpoint.address() {
            Some(address) if !bounds.allows(address) => Err(DestinationError::AddressOutOfBounds),
            _ => Ok(bounds),
        }
    }

    /// Whether the endpoint may be contacted at this address; ask with the very address that is
    /// then connected to.
    pub fn check_address(
        &self,
        endpoint: &Endpoint,
        address: IpAddr,
    ) -> Result<(), DestinationError> {
        let bounds = self.check(endpoint)?;
        let address = address.to_canonical();
        let is_named = endpoint.address().is_none_or(|named| named == address);
        if is_named && bounds.allows(address) {
            Ok(())
        } else {
            Err(DestinationError::AddressOutOfBounds)
        }
    }
}
