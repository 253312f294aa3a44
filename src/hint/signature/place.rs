//! Where in a text the part of `auth` lies that a fault is about. Cold: for explanations.

use std::collections::TryReserveError;

use super::auth::AuthFinder;
use super::SignatureFault;
use crate::hint::scan::{scan, ContainerStack, ScanError};

/// The offset of that part's first byte; `None` where no one part is at fault, or none is there.
pub fn place_of(
    raw: &[u8],
    fault: SignatureFault,
    stack: &mut ContainerStack,
) -> Result<Option<usize>, TryReserveError> {
    let mut finder = AuthFinder::new(raw);
    match scan(raw, stack, &mut finder) {
        Ok(()) => {}
        Err(ScanError::NotJson(_)) => return Ok(None),
        Err(ScanError::NoMemory(error)) => return Err(error),
    }
    let Some(auth) = finder.finish() else { return Ok(None) };
    let inside = match fault {
        SignatureFault::UnknownKey => auth.key_id.map(|text| text.start),
        SignatureFault::Algorithm => auth.algorithm.map(|text| text.start),
        SignatureFault::Audience => auth.audience.map(|text| text.start),
        SignatureFault::WrongMac | SignatureFault::Replayed => auth.mac.map(|text| text.start),
        SignatureFault::Expired => return Ok(auth.expiry.map(|number| number.start)),
        SignatureFault::TooLong
        | SignatureFault::NotJson
        | SignatureFault::NoAuth
        | SignatureFault::ReplayTableFull => None,
    };
    // The opening quote belongs to the value.
    Ok(inside.map(|start| start - 1))
}
