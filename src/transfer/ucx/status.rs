//! UCX's status codes, and what they mean to a caller of the transport.

use ucx_sys::{ucs_status_ptr_t, ucs_status_t, Ucx};

use crate::transfer::transport::TransportError;

/// The status in what a non-blocking call returned, or `None` if it is a request: the work is not
/// done yet. (The header has macros for this, which no library exports.)
pub(super) fn at_once(answer: ucs_status_ptr_t) -> Option<ucs_status_t> {
    let value = answer.addr() as isize;
    let is_error = (isize::from(ucx_sys::UCS_ERR_LAST)..0).contains(&value);
    // Between -100 and 0, so it fits.
    (value == 0 || is_error).then_some(value as ucs_status_t)
}

/// A failure of the transport itself.
pub(super) fn check(ucx: &Ucx, status: ucs_status_t, what: &str) -> Result<(), TransportError> {
    if status == ucx_sys::UCS_OK {
        return Ok(());
    }
    Err(TransportError::Unavailable(format!("{what}: {}", ucx.status_text(status))))
}

/// A failure of one connection.
pub(super) fn of_peer(ucx: &Ucx, status: ucs_status_t) -> TransportError {
    let text = ucx.status_text(status);
    match status {
        ucx_sys::UCS_ERR_INVALID_ADDR => TransportError::BadAddress(text),
        ucx_sys::UCS_ERR_NO_MEMORY
        | ucx_sys::UCS_ERR_NO_RESOURCE
        | ucx_sys::UCS_ERR_INVALID_PARAM
        | ucx_sys::UCS_ERR_NOT_IMPLEMENTED
        | ucx_sys::UCS_ERR_UNSUPPORTED => TransportError::Unavailable(text),
        _ => TransportError::PeerGone(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_done_and_requests_are_told_apart() {
        let pointer = |value: isize| std::ptr::without_provenance_mut(value as usize);
        assert_eq!(at_once(pointer(0)), Some(ucx_sys::UCS_OK));
        assert_eq!(at_once(pointer(-25)), Some(ucx_sys::UCS_ERR_CONNECTION_RESET));
        assert_eq!(at_once(pointer(-100)), Some(ucx_sys::UCS_ERR_LAST));
        assert_eq!(at_once(pointer(-101)), None);
        assert_eq!(at_once(pointer(0x7f00_0000_1000)), None);
    }
}
