//! Source control endpoints, each in one canonical spelling.
//!
//! A hint names a source by URL, and one place has many spellings: `HTTP://0x7F.1`,
//! `http://127.0.0.1:80`. Lists of endpoints compare canonical text, so two readers can never see
//! two places in one text. Text that libraries are known to read differently (control characters,
//! blanks, backslashes, missing slashes, user-info) is refused before any library sees it.
//!
//! Guards: nothing here says that an endpoint may be contacted; that is for the registry and the
//! allow-list. Never resolves a name. Error texts never repeat the endpoint.

use std::net::{IpAddr, Ipv6Addr};

/// How an endpoint is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// The state document over HTTP.
    Http,
    /// The state document over HTTP with TLS.
    Https,
    /// The library's own protocol.
    Tcp,
}

impl Scheme {
    /// As written in front of `://`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Tcp => "tcp",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Http, Self::Https, Self::Tcp]
            .into_iter()
            .find(|scheme| text.eq_ignore_ascii_case(scheme.as_str()))
    }

    fn default_port(self) -> Option<u16> {
        match self {
            Self::Http => Some(80),
            Self::Https => Some(443),
            Self::Tcp => None,
        }
    }
}

/// Where `http` and `https` endpoints serve their state when no path is given.
const DEFAULT_PATH: &str = "/v1/data_transceiver_state";

/// Why a text is not an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Longer than any endpoint needs to be.
    #[error("expected an endpoint of at most {max} bytes, found a longer one", max = Endpoint::MAX_BYTES)]
    TooLong,
    /// A character that URL libraries drop or turn into another.
    #[error("expected no control characters, blanks or backslashes in an endpoint, found one")]
    ForbiddenCharacter,
    /// Not one of the three schemes.
    #[error("expected an endpoint that begins with http://, https:// or tcp://")]
    Scheme,
    /// `?` and what follows.
    #[error("expected an endpoint without a query; remove it")]
    Query,
    /// `#` and what follows.
    #[error("expected an endpoint without a fragment; remove it")]
    Fragment,
    /// Something before `@`.
    #[error("expected an endpoint without user-info; remove it")]
    UserInfo,
    /// An IPv6 address with an interface.
    #[error("expected an IPv6 address without a zone id; remove it")]
    ZoneId,
    /// Host or port cannot be read.
    #[error("expected host or host:port, with a valid host and a port of 1 to 65535")]
    Authority,
    /// A host name with an empty or overlong part.
    #[error("expected a host name of at most 253 bytes with no empty part")]
    HostName,
    /// Any address, or a pattern.
    #[error("expected one host, found a wildcard; name the host")]
    Wildcard,
    /// Port 0.
    #[error("expected a port of 1 to 65535, found 0")]
    PortZero,
    /// `tcp` has no default port.
    #[error("expected a port: tcp endpoints are tcp://host:port")]
    PortMissing,
    /// `tcp` has no paths.
    #[error("expected no path: tcp endpoints are tcp://host:port")]
    TcpPath,
    /// A path that cannot stand in a request line.
    #[error("expected a path in ASCII; percent-encode it")]
    Path,
}

/// An endpoint in canonical spelling: `scheme://host:port` and, for `http` and `https`, a path.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    canonical: Box<str>,
    scheme: Scheme,
    host_start: usize,
    host_end: usize,
    path_start: usize,
    port: u16,
    address: Option<IpAddr>,
}

impl Endpoint {
    /// Longest endpoint, as given and as canonical text, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Reads any accepted spelling.
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        if text.len() > Self::MAX_BYTES {
            return Err(EndpointError::TooLong);
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
            return Err(EndpointError::ForbiddenCharacter);
        }
        let (scheme, rest) = text.split_once("://").ok_or(EndpointError::Scheme)?;
        let scheme = Scheme::parse(scheme).ok_or(EndpointError::Scheme)?;
        // `?` in a fragment belongs to the fragment.
        if let Some(at) = rest.find(['?', '#']) {
            let is_query = rest[at..].starts_with('?');
            return Err(if is_query { EndpointError::Query } else { EndpointError::Fragment });
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = read_authority(authority)?;
        let path = match scheme {
            Scheme::Tcp if path.is_empty() => "",
            Scheme::Tcp => return Err(EndpointError::TcpPath),
            _ if path.is_empty() => DEFAULT_PATH,
            _ if path.is_ascii() => path,
            _ => return Err(EndpointError::Path),
        };
        let port = port.or(scheme.default_port()).ok_or(EndpointError::PortMissing)?;
        Self::assemble(scheme, &host, port, path)
    }

    fn assemble(scheme: Scheme, host: &Host, port: u16, path: &str) -> Result<Self, EndpointError> {
        let mut canonical = format!("{}://", scheme.as_str());
        let is_bracketed = matches!(host, Host::Address(IpAddr::V6(_)));
        canonical.push_str(if is_bracketed { "[" } else { "" });
        let host_start = canonical.len();
        let address = match host {
            Host::Name(name) => {
                canonical.push_str(name);
                None
            }
            Host::Address(address) => {
                canonical.push_str(&address.to_string());
                Some(*address)
            }
        };
        let host_end = canonical.len();
        canonical.push_str(if is_bracketed { "]" } else { "" });
        canonical.push_str(&format!(":{port}"));
        let path_start = canonical.len();
        canonical.push_str(path);
        if canonical.len() > Self::MAX_BYTES {
            return Err(EndpointError::TooLong);
        }
        let canonical = canonical.into_boxed_str();
        Ok(Self { canonical, scheme, host_start, host_end, path_start, port, address })
    }

    /// The one spelling that stands for this endpoint.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// How it is spoken to.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Host name in ASCII and lower case, or address; an IPv6 address stands without brackets.
    pub fn host(&self) -> &str {
        &self.canonical[self.host_start..self.host_end]
    }

    /// The host when it is an address; `None` for a name, which somebody would have to resolve.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The port, filled in where the scheme has a default.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path for `http` and `https`, beginning with `/`, exactly as given; empty for `tcp`.
    pub fn path(&self) -> &str {
        &self.canonical[self.path_start..]
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Only the shape: an endpoint may come from a hint.
        write!(f, "Endpoint({}, {} bytes)", self.scheme.as_str(), self.canonical.len())
    }
}

enum Host {
    Name(String),
    Address(IpAddr),
}

/// Host and, where it is written, port.
fn read_authority(authority: &str) -> Result<(Host, Option<u16>), EndpointError> {
    if authority.contains('@') {
        return Err(EndpointError::UserInfo);
    }
    let after_host = match authority.find(']') {
        Some(at) if authority[..at].contains('%') => return Err(EndpointError::ZoneId),
        Some(at) => &authority[at + 1..],
        None => authority,
    };
    let has_port = after_host.split_once(':').is_some_and(|(_, port)| !port.is_empty());
    if authority.is_empty() {
        return Err(EndpointError::Authority);
    }
    // As an http authority also for tcp: hosts of schemes that the URL standard does not call
    // special are left as they are written.
    let url =
        url::Url::parse(&format!("http://{authority}/")).map_err(|_| EndpointError::Authority)?;
    // A library that saw more than a host and a port read the text differently than we did.
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.path() == "/"
        && url.query().is_none()
        && url.fragment().is_none();
    if !is_plain {
        return Err(EndpointError::Authority);
    }
    let host = match url.host().ok_or(EndpointError::Authority)? {
        url::Host::Domain(name) => read_name(name)?,
        url::Host::Ipv4(address) => Host::Address(address.into()),
        url::Host::Ipv6(address) => Host::Address(unmapped(address)),
    };
    if matches!(host, Host::Address(address) if address.is_unspecified()) {
        return Err(EndpointError::Wildcard);
    }
    // The library leaves out a port that is http's default.
    let port = has_port.then(|| url.port().unwrap_or(80));
    if port == Some(0) {
        return Err(EndpointError::PortZero);
    }
    Ok((host, port))
}

fn read_name(name: &str) -> Result<Host, EndpointError> {
    const MAX_HOST_NAME_BYTES: usize = 253;
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.contains('*') {
        return Err(EndpointError::Wildcard);
    }
    if name.len() > MAX_HOST_NAME_BYTES || name.split('.').any(str::is_empty) {
        return Err(EndpointError::HostName);
    }
    Ok(Host::Name(name.to_owned()))
}

/// An IPv4 address that is written as an IPv6 one (`::ffff:a.b.c.d`) is the IPv4 address.
fn unmapped(address: Ipv6Addr) -> IpAddr {
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}
