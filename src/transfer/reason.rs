//! Why a fetch came to nothing: closed lists, one for each side, which are also metric labels.

use crate::telemetry::Metrics;

/// Why a prefetch failed. The request goes on as if there had been no hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum FailReason {
    /// The sequence means something else elsewhere (an adapter without a digest).
    NotShareable,
    /// The endpoint is not on the transceiver's own list, or leads outside its address ranges.
    EndpointDenied,
    /// The endpoint's scheme, or the source's transport, is not available here.
    Unsupported,
    /// The source's state could not be fetched or read.
    MetadataFailed,
    /// The source's state did not come in time.
    MetadataTimeout,
    /// The source serves another namespace.
    NamespaceMismatch,
    /// The source's blocks have another layout.
    LayoutMismatch,
    /// The source could not be reached, or went away.
    PeerGone,
    /// The source was started anew since its state was fetched.
    SourceRestarted,
    /// The source has as much to do as it allows.
    SourceBusy,
    /// The source refused for another reason.
    SourceRefused,
    /// The source does not hear this side, or did not prove itself to it.
    Unauthenticated,
    /// Not all blocks came in time.
    TransferTimeout,
    /// A block is not what the source said it is.
    Corrupted,
    /// The source broke the protocol.
    Protocol,
    /// A limit or memory of this side ran out.
    Limit,
    /// The device that has this side's blocks did not take them.
    DeviceFailed,
    /// The transceiver was destroyed.
    Shutdown,
    /// A fault of the library.
    Fault,
}

impl FailReason {
    /// Names of all reasons, in index order: the metric's labels.
    pub const NAMES: &'static [&'static str] = Metrics::PREFETCH_FAILURES;

    /// The reason's name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Why a source refuses a request. Never tells whether a name is present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefuseReason {
    /// The request's protocol version cannot be read.
    Version = 1,
    /// Another namespace.
    Namespace = 2,
    /// Another layout.
    Layout = 3,
    /// The request means an earlier start of this source.
    Incarnation = 4,
    /// Limits are reached; later perhaps.
    Busy = 5,
    /// The request makes no sense.
    BadRequest = 6,
    /// The peer has not proven what it has to before it is heard.
    Unauthenticated = 7,
}

impl RefuseReason {
    /// Names of all reasons, by [`RefuseReason::index`]: the metric's labels.
    pub const NAMES: &'static [&'static str] = Metrics::SOURCE_REFUSALS;

    const ALL: [Self; 7] = [
        Self::Version,
        Self::Namespace,
        Self::Layout,
        Self::Incarnation,
        Self::Busy,
        Self::BadRequest,
        Self::Unauthenticated,
    ];

    /// The reason with that code on the wire.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == code)
    }

    /// The reason's position in [`RefuseReason::NAMES`].
    pub fn index(self) -> usize {
        self as usize - 1
    }

    /// What the refusal means to the destination.
    pub fn as_failure(self) -> FailReason {
        match self {
            Self::Version => FailReason::Unsupported,
            Self::Namespace => FailReason::NamespaceMismatch,
            Self::Layout => FailReason::LayoutMismatch,
            Self::Incarnation => FailReason::SourceRestarted,
            Self::Busy => FailReason::SourceBusy,
            Self::BadRequest => FailReason::SourceRefused,
            Self::Unauthenticated => FailReason::Unauthenticated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_reasons_go_together() {
        assert_eq!(FailReason::NAMES.len(), FailReason::Fault as usize + 1);
        assert_eq!(FailReason::NotShareable.name(), "not_shareable");
        assert_eq!(FailReason::Fault.name(), "fault");
        assert_eq!(FailReason::TransferTimeout.name(), "transfer_timeout");
        for (index, reason) in RefuseReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert_eq!(RefuseReason::from_code(reason as u8), Some(reason));
        }
        assert_eq!(RefuseReason::NAMES.len(), RefuseReason::ALL.len());
        assert_eq!(RefuseReason::from_code(0), None);
        assert_eq!(RefuseReason::from_code(8), None);
    }
}
