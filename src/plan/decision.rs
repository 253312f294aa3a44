//! The one decision about a request's optional reuse: local work, or one named fetch.
//!
//! The steps run in a fixed order and stop at the first refusal. There is never a second candidate,
//! family or binding: a hint whose first candidate is bad ends optional reuse. A refusal changes
//! nothing else: local prefill, the paired path and a required handoff stay as they were, which is
//! why [`RequestProfile::required_handoff`] is part of the profile and of no step.

use std::collections::TryReserveError;
use std::fmt;
use std::sync::Arc;

use super::binding::{Addressing, Binding, BindingTable};
use super::candidates::{Candidate, Candidates, Capabilities, Counts};
use super::payload::{FetchPayload, PayloadError};
use super::step::Step;
use super::Endpoint;
use crate::hint::Snapshot;

/// What sort of work a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Prefill, with or without generation after it.
    Context,
    /// Generation whose context comes from a paired worker.
    GenerationOnly,
    /// Anything else; hints do not apply to it.
    Other,
}

/// What of a request matters to the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestProfile<'a> {
    /// Whether it uses a LoRA adapter.
    pub has_lora: bool,
    /// What sort of work it is.
    pub kind: RequestKind,
    /// Whether it needs a handoff from a paired worker. Its rules hold whatever is decided here.
    pub required_handoff: bool,
    /// The namespace that its blocks belong to.
    pub namespace: &'a [u8],
}

/// Why there is no named fetch, in the order in which the reasons are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// The request uses a LoRA adapter.
    Lora = 1,
    /// The request's kind takes no hints.
    NotEligible = 2,
    /// No hint, or no action in it that a configured family supports.
    NoCandidate = 3,
    /// The first candidate's payload breaks a rule of its version.
    BadPayload = 4,
    /// The payload's endpoint is not in the registry, or is no endpoint at all.
    EndpointUnlisted = 5,
    /// The endpoint is listed for no binding of a supporting family.
    BindingMissing = 6,
    /// The endpoint is listed for several such bindings.
    BindingAmbiguous = 7,
    /// The binding may not be used for the request's namespace.
    BindingUnauthorised = 8,
    /// The binding itself cannot do the action.
    BindingIncapable = 9,
    /// The binding finds blocks by a paired request, not by name.
    RequestPaired = 10,
}

impl Refusal {
    /// All refusals, in the order in which they are looked for.
    pub const ALL: [Self; 10] = [
        Self::Lora,
        Self::NotEligible,
        Self::NoCandidate,
        Self::BadPayload,
        Self::EndpointUnlisted,
        Self::BindingMissing,
        Self::BindingAmbiguous,
        Self::BindingUnauthorised,
        Self::BindingIncapable,
        Self::RequestPaired,
    ];

    /// Its place in [`Refusal::ALL`].
    pub fn index(self) -> usize {
        self as usize - 1
    }

    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lora => "lora",
            Self::NotEligible => "not_eligible",
            Self::NoCandidate => "no_candidate",
            Self::BadPayload => "bad_payload",
            Self::EndpointUnlisted => "endpoint_unlisted",
            Self::BindingMissing => "binding_missing",
            Self::BindingAmbiguous => "binding_ambiguous",
            Self::BindingUnauthorised => "binding_unauthorised",
            Self::BindingIncapable => "binding_incapable",
            Self::RequestPaired => "request_paired",
        }
    }

    /// The refusal with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| *refusal as u8 == number)
    }
}

/// Blocks to be asked for by name, from one source.
#[derive(Clone, PartialEq, Eq)]
pub struct NamedFetch {
    /// The binding that serves it.
    pub binding_id: Box<str>,
    /// Where its source is; the provider checks it once more.
    pub endpoint: Endpoint,
    /// The chosen action's position in the envelope.
    pub action_index: u32,
    /// How many blocks from the root the hint names.
    pub block_count: u32,
    /// The hint's hash of the last of them. Bounds the range; names nothing.
    pub last_block_hash: u64,
    /// Whether the paired source comes after the fetch, as it would have come without it.
    pub then_paired_source: bool,
    /// The canonical envelope with only the chosen action, where the binding asks for it.
    pub envelope: Option<Arc<Vec<u8>>>,
}

impl fmt::Debug for NamedFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Configuration and sizes only: hash and envelope are contents of a hint.
        f.debug_struct("NamedFetch")
            .field("binding_id", &self.binding_id)
            .field("endpoint", &self.endpoint)
            .field("action_index", &self.action_index)
            .field("block_count", &self.block_count)
            .field("then_paired_source", &self.then_paired_source)
            .field("envelope_bytes", &self.envelope.as_ref().map(|envelope| envelope.len()))
            .finish_non_exhaustive()
    }
}

/// What to do about a request's optional reuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing: the request runs as if it had no hint.
    Local(Refusal),
    /// Try this fetch first.
    NamedFetch(NamedFetch),
}

/// A plan, and what its making counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub plan: Plan,
    /// All zero where nothing was collected.
    pub counts: Counts,
}

/// Decides for one request. Fails only for want of memory.
pub fn decide(
    snapshot: Option<&Snapshot>,
    capabilities: &Capabilities,
    table: &BindingTable,
    profile: &RequestProfile<'_>,
) -> Result<Decision, TryReserveError> {
    decide_observed(snapshot, capabilities, table, profile, |_| {})
}

/// As [`decide`], and tells each step as it is taken.
pub fn decide_observed(
    snapshot: Option<&Snapshot>,
    capabilities: &Capabilities,
    table: &BindingTable,
    profile: &RequestProfile<'_>,
    mut observe: impl FnMut(Step<'_>),
) -> Result<Decision, TryReserveError> {
    let nothing_collected =
        |refusal| Ok(Decision { plan: Plan::Local(refusal), counts: Counts::default() });
    if profile.has_lora {
        return nothing_collected(Refusal::Lora);
    }
    if profile.kind == RequestKind::Other {
        return nothing_collected(Refusal::NotEligible);
    }
    observe(Step::Eligible);
    let Some(snapshot) = snapshot else {
        return nothing_collected(Refusal::NoCandidate);
    };
    let candidates = Candidates::collect(snapshot, capabilities)?;
    observe(Step::Collected(&candidates));
    let plan = match plan_fetch(&candidates, table, profile, &mut observe) {
        Ok(fetch) => Plan::NamedFetch(fetch),
        Err(Stop::Refused(refusal)) => Plan::Local(refusal),
        Err(Stop::NoMemory(error)) => return Err(error),
    };
    Ok(Decision { plan, counts: candidates.counts() })
}

enum Stop {
    Refused(Refusal),
    NoMemory(TryReserveError),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<PayloadError> for Stop {
    fn from(error: PayloadError) -> Self {
        match error {
            PayloadError::NoMemory(error) => Self::NoMemory(error),
            _ => Self::Refused(Refusal::BadPayload),
        }
    }
}

/// The steps after collection, for the first candidate and no other.
fn plan_fetch(
    candidates: &Candidates,
    table: &BindingTable,
    profile: &RequestProfile<'_>,
    observe: &mut impl FnMut(Step<'_>),
) -> Result<NamedFetch, Stop> {
    let candidate = candidates.list().first().ok_or(Refusal::NoCandidate)?;
    let snapshot = candidates.snapshot();
    let action = snapshot.action(candidate.action_index).ok_or(Refusal::NoCandidate)?;
    let payload = FetchPayload::read(action.version, action.payload, table.hash_dialect());
    observe(Step::Payload(payload.as_ref()));
    let payload = payload?;

    let endpoint = Endpoint::parse(&payload.source_control_endpoint);
    observe(Step::Endpoint(endpoint.as_ref()));
    // A text that is no endpoint has no canonical form that could be listed.
    let endpoint = endpoint.map_err(|_| Refusal::EndpointUnlisted)?;
    let listed = table.listed_for(&endpoint);
    observe(Step::Registry { is_listed: listed.is_some() });

    let (binding_id, binding) =
        only_usable(candidate, listed.ok_or(Refusal::EndpointUnlisted)?, observe)?;
    let is_authorised = binding.is_authorised_for(profile.namespace);
    observe(Step::Authorised(is_authorised));
    if !is_authorised {
        return Err(Refusal::BindingUnauthorised.into());
    }
    let is_capable = binding.is_capable_of(action.action_type, action.version);
    observe(Step::Capable(is_capable));
    if !is_capable {
        return Err(Refusal::BindingIncapable.into());
    }
    observe(Step::Addressed(binding.addressing()));
    if binding.addressing() == Addressing::RequestPaired {
        return Err(Refusal::RequestPaired.into());
    }
    let envelope = match binding.wants_envelope() {
        true => Some(one_action_envelope(snapshot, candidate.action_index)?),
        false => None,
    };
    Ok(NamedFetch {
        binding_id: binding_id.into(),
        endpoint,
        // An envelope of 64 KiB has no room for more than 2^32 actions.
        action_index: candidate.action_index as u32,
        block_count: payload.block_count,
        last_block_hash: payload.last_block_hash,
        then_paired_source: profile.kind == RequestKind::GenerationOnly,
        envelope,
    })
}

/// The one binding, of those that the endpoint is listed for, whose family supports the candidate.
fn only_usable<'a>(
    candidate: &Candidate,
    listed: impl Iterator<Item = (&'a str, &'a Binding)>,
    observe: &mut impl FnMut(Step<'_>),
) -> Result<(&'a str, &'a Binding), Refusal> {
    let mut found = Err(Refusal::BindingMissing);
    for (id, binding) in listed {
        let is_supported = candidate.is_supported_by(binding.family());
        observe(Step::Considered { id, binding, is_supported });
        if is_supported {
            found = match found {
                Err(Refusal::BindingMissing) => Ok((id, binding)),
                _ => Err(Refusal::BindingAmbiguous),
            };
        }
    }
    found
}

fn one_action_envelope(snapshot: &Snapshot, index: usize) -> Result<Arc<Vec<u8>>, Stop> {
    let envelope = snapshot.one_action(index).map_err(Stop::NoMemory)?;
    let envelope = envelope.ok_or(Refusal::NoCandidate)?;
    let json = envelope.json();
    let mut copy = Vec::new();
    copy.try_reserve_exact(json.len()).map_err(Stop::NoMemory)?;
    copy.extend_from_slice(json);
    Ok(Arc::new(copy))
}
