//! Whether IPsec policies (xfrm) decide what leaves this network namespace and what is forwarded.
//! Whoever forwards past the kernel's stack forwards past these.

use std::io;

use netlink_bindings::traits::{NetlinkRequest, Protocol};

use crate::netlink::Socket;

/// From `linux/xfrm.h`.
const XFRM_MSG_GETSPDINFO: u16 = 0x25;
const XFRMA_SPD_INFO: u16 = 1;
/// The reply's flags, before its attributes; an attribute's header.
const FLAGS_BYTES: usize = 4;
const HEADER_BYTES: usize = 4;

/// Policies that a forwarded packet may meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// For what leaves this host.
    pub outbound: u32,
    /// For what it forwards.
    pub forwarded: u32,
}

impl Policies {
    /// There are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// Those of the current network namespace; none where the kernel has no IPsec.
///
/// # Errors
///
/// The kernel does not answer; it takes `CAP_NET_ADMIN`.
pub fn policies() -> io::Result<Policies> {
    let mut socket = Socket::new();
    let mut replies = match socket.request(&Count) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
            return Ok(Policies::default());
        }
        replies => replies?,
    };
    let mut found = Policies::default();
    while let Some(reply) = replies.recv() {
        found = reply?.unwrap_or(found);
    }
    Ok(found)
}

/// Asks for their number.
struct Count;

impl NetlinkRequest for Count {
    type ReplyType<'buf> = Option<Policies>;

    fn protocol(&self) -> Protocol {
        Protocol::Raw {
            protonum: libc::NETLINK_XFRM as u16,
            request_type: XFRM_MSG_GETSPDINFO,
        }
    }

    fn flags(&self) -> u16 {
        0
    }

    fn payload(&self) -> &[u8] {
        &[0; FLAGS_BYTES]
    }

    fn decode_reply(reply: &[u8]) -> Option<Policies> {
        let mut attributes = reply.get(FLAGS_BYTES..)?;
        loop {
            let [a, b, c, d, ..] = *attributes else {
                return None;
            };
            let length = usize::from(u16::from_ne_bytes([a, b]));
            let value = attributes.get(HEADER_BYTES..length)?;
            if u16::from_ne_bytes([c, d]) == XFRMA_SPD_INFO {
                // struct xfrmu_spdinfo: in, out, forward, and those of sockets.
                let number = |place: usize| {
                    let bytes = value.get(4 * place..)?.first_chunk()?;
                    Some(u32::from_ne_bytes(*bytes))
                };
                return Some(Policies {
                    outbound: number(1)?,
                    forwarded: number(2)?,
                });
            }
            attributes = attributes.get(length.next_multiple_of(4)..)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iproute::ip;
    use crate::namespace;

    /// Needs root, and a kernel with IPsec.
    #[test]
    fn policies_are_counted_by_where_they_hold() {
        namespace::in_new(|| {
            assert_eq!(policies().unwrap(), Policies::default());
            let any = "src 0.0.0.0/0 dst 192.0.2.0/24 action block";
            ip(&format!("xfrm policy add {any} dir in"));
            assert!(policies().unwrap().is_empty(), "what is for this host");
            ip(&format!("xfrm policy add {any} dir out"));
            ip(&format!("xfrm policy add {any} dir fwd"));
            let found = policies().unwrap();
            assert_eq!((found.outbound, found.forwarded), (1, 1));
        })
        .unwrap();
    }

    #[test]
    fn a_cut_reply_tells_nothing() {
        let mut reply = vec![0; FLAGS_BYTES];
        reply.extend(28_u16.to_ne_bytes());
        reply.extend(XFRMA_SPD_INFO.to_ne_bytes());
        for number in 1..=6_u32 {
            reply.extend(number.to_ne_bytes());
        }
        let whole = Policies {
            outbound: 2,
            forwarded: 3,
        };
        assert_eq!(Count::decode_reply(&reply), Some(whole));
        for length in 0..reply.len() {
            assert_eq!(Count::decode_reply(&reply[..length]), None, "{length}");
        }
    }
}
