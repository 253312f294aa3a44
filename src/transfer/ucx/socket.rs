//! An IPv4 address and port as the system's calls want them.

use std::net::SocketAddrV4;

use libc::{sockaddr, sockaddr_in, sockaddr_storage, socklen_t};

/// An address that lives where [`Socket::as_ptr`] points.
pub(super) struct Socket(sockaddr_in);

impl Socket {
    pub fn as_ptr(&self) -> *const sockaddr {
        std::ptr::from_ref(&self.0).cast()
    }

    pub fn len(&self) -> socklen_t {
        size_of::<sockaddr_in>() as socklen_t
    }
}

impl From<SocketAddrV4> for Socket {
    fn from(address: SocketAddrV4) -> Self {
        // SAFETY: all-zero bytes are a valid value.
        let mut value: sockaddr_in = unsafe { std::mem::zeroed() };
        value.sin_family = libc::AF_INET as libc::sa_family_t;
        value.sin_port = address.port().to_be();
        value.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
        Self(value)
    }
}

/// The port in an address that a call filled in; `None` if it is not of IPv4.
pub(super) fn port_of(storage: &sockaddr_storage) -> Option<u16> {
    if i32::from(storage.ss_family) != libc::AF_INET {
        return None;
    }
    // SAFETY: the storage has room and alignment for every kind, and every bit pattern is valid.
    let value = unsafe { std::ptr::from_ref(storage).cast::<sockaddr_in>().read() };
    Some(u16::from_be(value.sin_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stand_where_the_system_wants_them() {
        let socket = Socket::from("10.1.2.3:258".parse::<SocketAddrV4>().unwrap());
        assert_eq!(socket.len(), 16);
        // SAFETY: all-zero bytes are a valid value.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(port_of(&storage), None);
        // SAFETY: the storage has room and alignment for every kind.
        unsafe { std::ptr::from_mut(&mut storage).cast::<sockaddr_in>().write(socket.0) };
        assert_eq!(port_of(&storage), Some(258));
        assert_eq!(u32::from_be(socket.0.sin_addr.s_addr), 0x0a01_0203);
    }
}
