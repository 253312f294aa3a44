//! Fetches a transceiver state from a `tcp` endpoint: the peer's first message is the state.
//!
//! Guards: as for HTTP, by the same parts: one deadline for everything, a cap on the size, every
//! address judged before it is connected to. What is not the message is no state.
//! Never does: send anything, or allocate more than arrived and the cap allows.

use std::io::{ErrorKind, Read};

use mio::net::TcpStream;

use super::client::FetchError;
use super::patience::Patience;
use crate::transfer::protocol::{read_state_head, STATE_HEAD_BYTES};

/// Bytes read at once.
const CHUNK_BYTES: usize = 16 << 10;

/// Reads the state that the peer sends. Blocks, at most as long as `patience` lasts.
pub(super) fn read_state(
    stream: &mut TcpStream,
    patience: &Patience,
) -> Result<Vec<u8>, FetchError> {
    let mut head = [0; STATE_HEAD_BYTES];
    let mut filled = 0;
    while filled < head.len() {
        filled += read_some(stream, patience, &mut head[filled..])?;
    }
    let len = read_state_head(&head).map_err(|error| match error {
        crate::transfer::WireError::TooMuch { .. } => FetchError::TooLong,
        _ => FetchError::Failed,
    })?;
    let mut state = Vec::new();
    let mut chunk = [0; CHUNK_BYTES];
    while state.len() < len {
        let wanted = chunk.len().min(len - state.len());
        let read = read_some(stream, patience, &mut chunk[..wanted])?;
        state.try_reserve(read).map_err(|_| FetchError::Failed)?;
        state.extend_from_slice(&chunk[..read]);
    }
    Ok(state)
}

/// At least one byte, or that there will be none.
fn read_some(
    stream: &mut TcpStream,
    patience: &Patience,
    into: &mut [u8],
) -> Result<usize, FetchError> {
    loop {
        // Also while there is always something to read.
        patience.left().map_err(|_| FetchError::GivenUp)?;
        match stream.read(into) {
            Ok(0) => return Err(FetchError::Failed),
            Ok(len) => return Ok(len),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                patience.wait(None).map_err(|_| FetchError::GivenUp)?;
            }
            Err(_) => return Err(FetchError::Failed),
        }
    }
}
