//! What a decision comes across, told while it is made: for operators who ask why.
//!
//! [`super::decide`] is [`super::decide_observed`] with nobody listening, so an explanation cannot
//! differ from the decision that it explains. Steps borrow what the decision itself looks at; they
//! decide nothing.

use super::binding::{Addressing, Binding};
use super::candidates::Candidates;
use super::endpoint::{Endpoint, EndpointError};
use super::payload::{FetchPayload, PayloadError};

/// One step of a decision. Steps come in the order of the variants, and none comes where the request
/// takes no hints. The last one that comes shows why, unless the decision is a fetch.
#[derive(Debug)]
pub enum Step<'a> {
    /// The request takes hints: it uses no LoRA adapter and is of a kind that they apply to. Comes
    /// last where there is no hint.
    Eligible,
    /// The usable actions; the first of them, and no other, is looked at further.
    Collected(&'a Candidates),
    /// The first candidate's payload, or what is wrong with it.
    Payload(Result<&'a FetchPayload<'a>, &'a PayloadError>),
    /// The payload's endpoint in canonical spelling, or why the text is no endpoint.
    Endpoint(Result<&'a Endpoint, &'a EndpointError>),
    /// Whether the registry lists the endpoint.
    Registry {
        /// It does.
        is_listed: bool,
    },
    /// One for each binding that the endpoint is listed for, by id; exactly one of them must be
    /// supported.
    Considered {
        /// The binding's id.
        id: &'a str,
        /// The binding.
        binding: &'a Binding,
        /// Whether its family supports the action.
        is_supported: bool,
    },
    /// Whether the one binding may be used for the request's namespace.
    Authorised(bool),
    /// Whether the one binding itself can do the action.
    Capable(bool),
    /// How the one binding finds blocks.
    Addressed(Addressing),
}
