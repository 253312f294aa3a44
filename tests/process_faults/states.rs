//! The states of the protocol on either side, as `docs/protocol.md` has them, one name each. A process
//! tells a state's name when it enters it.

/// Which side of a transfer a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    Source,
    Destination,
}

impl Side {
    pub fn part(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }

    /// Its states, in the order of a fetch, and what each means.
    pub fn states(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Source => SOURCE,
            Self::Destination => DESTINATION,
        }
    }
}

const SOURCE: &[(&str, &str)] = &[
    ("state_asked", "somebody asks for its state"),
    ("challenged", "it has challenged a caller, whose proof is awaited"),
    ("asked", "a fetch has come, nothing is looked up"),
    ("pinned", "the blocks are pinned, nothing is answered"),
    ("answered", "accepted, no block is sent"),
    ("sending", "the first run is on its way"),
    ("partly_sent", "a run's send has ended, others follow"),
    ("all_sent", "the last send has ended, all is unpinned"),
];

const DESTINATION: &[(&str, &str)] = &[
    ("fetching_state", "PREFETCH_INIT: the source's state is awaited"),
    ("connecting", "PREFETCH_INIT: the state is here, no connection is"),
    ("proving", "PREFETCH_INIT: said hello, the challenge is awaited"),
    ("asked", "PREFETCH_IN_PROGRESS: the fetch is sent, not answered"),
    ("accepted", "PREFETCH_IN_PROGRESS: accepted, no run is let in"),
    ("receiving", "PREFETCH_IN_PROGRESS: the first run is being received"),
    ("placing", "PREFETCH_IN_PROGRESS: a run is in its place, others follow"),
    ("delivered", "PREFETCH_COMPLETE: all is here, on a lease"),
    ("claimed", "CONTEXT_INIT: the request has its blocks"),
];
