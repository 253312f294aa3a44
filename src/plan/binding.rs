//! Server configuration: the bindings that may serve a request, and the registry of endpoints.
//!
//! Nothing is allowed that was not said: a new binding has no actions and no namespaces, a new
//! table no endpoints. Listing an endpoint for a binding means trusting its content for the
//! namespaces which that binding serves. A table that refuses a call stays as it was.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap, TryReserveError};
use std::hash::BuildHasherDefault;

use super::{Endpoint, EndpointError, HashDialect, MAX_NAMESPACE_BYTES, MAX_NAME_BYTES};

/// How a binding finds blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// By the blocks' content names; what a hint asks for.
    ContentNamed,
    /// By the request of a paired worker; never reached by a hint.
    RequestPaired,
}

/// One configured way to reach blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    family: Box<str>,
    addressing: Addressing,
    wants_envelope: bool,
    /// Action type and version.
    actions: BTreeSet<(Box<str>, Box<str>)>,
    namespaces: BTreeSet<Box<[u8]>>,
}

impl Binding {
    /// The family whose capabilities say what a hint may ask of bindings like this.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// How it finds blocks.
    pub fn addressing(&self) -> Addressing {
        self.addressing
    }

    /// Whether its plans carry the envelope with the chosen action.
    pub fn wants_envelope(&self) -> bool {
        self.wants_envelope
    }

    /// What it can do: action types and versions, sorted bytewise.
    pub fn actions(&self) -> impl Iterator<Item = (&str, &str)> {
        self.actions.iter().map(|(kind, version)| (&**kind, &**version))
    }

    /// Whether this very binding can do this version of this action.
    pub fn is_capable_of(&self, action_type: &str, action_version: &str) -> bool {
        self.actions
            .iter()
            .any(|(kind, version)| **kind == *action_type && **version == *action_version)
    }

    /// Whether it may be used for this namespace.
    pub fn is_authorised_for(&self, namespace: &[u8]) -> bool {
        self.namespaces.contains(namespace)
    }
}

/// Why a table refused a change. Texts name configuration, never anything of a hint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindingTableError {
    /// An empty or overlong name.
    #[error("expected {what} of 1 to {MAX_NAME_BYTES} bytes, found {found}")]
    NameLength {
        /// Which name.
        what: &'static str,
        /// Its length.
        found: usize,
    },
    /// An overlong namespace.
    #[error("expected a namespace of at most {MAX_NAMESPACE_BYTES} bytes, found {0}")]
    NamespaceLength(usize),
    /// A binding of that name exists.
    #[error("expected a new binding id, found {0:?} in the table already; choose another")]
    BindingExists(String),
    /// There is no binding of that name.
    #[error("expected the id of a binding in the table, found {0:?}; add the binding first")]
    NoSuchBinding(String),
    /// The text is not an endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A table, binding or registry is full.
    #[error("expected at most {max} {what}; remove some")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        max: usize,
    },
    /// Memory could not be had.
    #[error("out of memory")]
    NoMemory,
    /// A configuration file is not what it should be.
    #[error("{place}: {problem}")]
    File {
        /// Where in the file.
        place: String,
        /// What is wrong there.
        problem: String,
    },
}

impl From<TryReserveError> for BindingTableError {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

/// Bindings and the registry of endpoints that may serve them. What grows with the configuration is
/// asked for; the rest are small pieces of a fixed size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindingTable {
    bindings: BTreeMap<Box<str>, Box<Binding>>,
    /// The registry: canonical endpoint -> ids of the bindings allowed for it.
    /// The hasher has no key: nobody but the operator chooses the endpoints.
    endpoints: HashMap<Endpoint, BTreeSet<Box<str>>, BuildHasherDefault<DefaultHasher>>,
    hash_dialect: HashDialect,
}

impl BindingTable {
    /// Most bindings of a table.
    pub const MAX_BINDINGS: usize = 1024;
    /// Most endpoints of a registry.
    pub const MAX_ENDPOINTS: usize = 65_536;
    /// Most bindings that one endpoint may be listed for.
    pub const MAX_BINDINGS_PER_ENDPOINT: usize = 64;
    /// Most actions, and most namespaces, of one binding.
    pub const MAX_PER_BINDING: usize = 1024;

    /// No bindings and no endpoints: every hint is refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says how senders write block hashes.
    pub fn set_hash_dialect(&mut self, dialect: HashDialect) {
        self.hash_dialect = dialect;
    }

    /// How senders write block hashes.
    pub fn hash_dialect(&self) -> HashDialect {
        self.hash_dialect
    }

    /// Adds a binding that can do nothing yet.
    pub fn add_binding(
        &mut self,
        id: &str,
        family: &str,
        addressing: Addressing,
        wants_envelope: bool,
    ) -> Result<(), BindingTableError> {
        check_name("a binding id", id)?;
        if family.len() > MAX_NAME_BYTES {
            // As in a capability set, a family's name may be empty.
            return Err(name_length("a family name", family));
        }
        if self.bindings.contains_key(id) {
            return Err(BindingTableError::BindingExists(id.to_owned()));
        }
        check_room("bindings", self.bindings.len(), Self::MAX_BINDINGS)?;
        let binding = Binding {
            family: family.into(),
            addressing,
            wants_envelope,
            actions: BTreeSet::new(),
            namespaces: BTreeSet::new(),
        };
        self.bindings.insert(id.into(), Box::new(binding));
        Ok(())
    }

    /// Says that this very binding can do this version of this action.
    pub fn add_action(
        &mut self,
        binding_id: &str,
        action_type: &str,
        action_version: &str,
    ) -> Result<(), BindingTableError> {
        check_name("an action type", action_type)?;
        check_name("an action version", action_version)?;
        let binding = self.binding_mut(binding_id)?;
        check_room("actions of a binding", binding.actions.len(), Self::MAX_PER_BINDING)?;
        binding.actions.insert((action_type.into(), action_version.into()));
        Ok(())
    }

    /// Lets the binding serve requests of this namespace (bytes that the host chooses).
    pub fn authorise_namespace(
        &mut self,
        binding_id: &str,
        namespace: &[u8],
    ) -> Result<(), BindingTableError> {
        if namespace.len() > MAX_NAMESPACE_BYTES {
            return Err(BindingTableError::NamespaceLength(namespace.len()));
        }
        let binding = self.binding_mut(binding_id)?;
        check_room("namespaces of a binding", binding.namespaces.len(), Self::MAX_PER_BINDING)?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(namespace.len())?;
        copy.extend_from_slice(namespace);
        binding.namespaces.insert(copy.into_boxed_slice());
        Ok(())
    }

    /// Lists an endpoint, in any spelling, for a binding.
    pub fn allow_endpoint(
        &mut self,
        endpoint: &str,
        binding_id: &str,
    ) -> Result<(), BindingTableError> {
        let endpoint = Endpoint::parse(endpoint)?;
        self.binding_mut(binding_id)?;
        match self.endpoints.get(&endpoint) {
            Some(ids) => {
                let max = Self::MAX_BINDINGS_PER_ENDPOINT;
                check_room("bindings of one endpoint", ids.len(), max)?;
            }
            None => check_room("endpoints", self.endpoints.len(), Self::MAX_ENDPOINTS)?,
        }
        self.endpoints.try_reserve(1)?;
        self.endpoints.entry(endpoint).or_default().insert(binding_id.into());
        Ok(())
    }

    /// Whether the endpoint is in the registry.
    pub fn lists(&self, endpoint: &Endpoint) -> bool {
        self.endpoints.contains_key(endpoint)
    }

    /// A binding by its id.
    pub fn binding(&self, id: &str) -> Option<&Binding> {
        self.bindings.get(id).map(|binding| &**binding)
    }

    /// All bindings, by id.
    pub fn bindings(&self) -> impl Iterator<Item = (&str, &Binding)> {
        self.bindings.iter().map(|(id, binding)| (&**id, &**binding))
    }

    /// The bindings for which the endpoint is listed, by id; `None` when it is not in the registry.
    pub(super) fn listed_for<'a>(
        &'a self,
        endpoint: &Endpoint,
    ) -> Option<impl Iterator<Item = (&'a str, &'a Binding)> + use<'a>> {
        let ids = self.endpoints.get(endpoint)?;
        Some(ids.iter().filter_map(|id| Some((&**id, &**self.bindings.get(id)?))))
    }

    fn binding_mut(&mut self, id: &str) -> Result<&mut Binding, BindingTableError> {
        self.bindings.get_mut(id).map(|binding| &mut **binding).ok_or_else(|| {
            BindingTableError::NoSuchBinding(id.chars().take(MAX_NAME_BYTES).collect())
        })
    }
}

fn name_length(what: &'static str, name: &str) -> BindingTableError {
    BindingTableError::NameLength { what, found: name.len() }
}

fn check_name(what: &'static str, name: &str) -> Result<(), BindingTableError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(name_length(what, name));
    }
    Ok(())
}

fn check_room(what: &'static str, len: usize, max: usize) -> Result<(), BindingTableError> {
    if len >= max {
        return Err(BindingTableError::Full { what, max });
    }
    Ok(())
}
