//! The few messages of `nfnetlink_queue` that a screen needs. Layouts and numbers are those
//! of the kernel's `nfnetlink.h`, `nfnetlink_queue.h` and `netlink.h`: headers and lengths
//! in host order, what belongs to netfilter in network order.

use std::io;

const NETLINK_HEADER: usize = 16;
/// The netlink header and `struct nfgenmsg`.
const HEADERS: usize = NETLINK_HEADER + 4;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NFNL_SUBSYS_QUEUE: u16 = 3 << 8;
const NFQNL_MSG_PACKET: u16 = 0;
const NFQNL_MSG_VERDICT: u16 = 1;
const NFQNL_MSG_CONFIG: u16 = 2;
const NFQNL_MSG_VERDICT_BATCH: u16 = 3;
const NFQA_PACKET_HDR: u16 = 1;
const NFQA_VERDICT_HDR: u16 = 2;
const NFQA_PAYLOAD: u16 = 10;
const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQNL_CFG_CMD_BIND: u8 = 1;
const NFQNL_COPY_PACKET: u8 = 2;
const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// Binds the queue to the socket; answered.
pub(super) fn bind(queue: u16) -> Vec<u8> {
    let command = [NFQNL_CFG_CMD_BIND, 0, 0, 0];
    config(queue, NFQA_CFG_CMD, &command)
}

/// Asks for the first `bytes` of each packet; answered.
pub(super) fn copy(queue: u16, bytes: u32) -> Vec<u8> {
    let mut parameters = bytes.to_be_bytes().to_vec();
    parameters.push(NFQNL_COPY_PACKET);
    config(queue, NFQA_CFG_PARAMS, &parameters)
}

/// Sets how many packets may wait; answered.
pub(super) fn queue_length(queue: u16, packets: u32) -> Vec<u8> {
    config(queue, NFQA_CFG_QUEUE_MAXLEN, &packets.to_be_bytes())
}

/// Accepts all packets up to this one.
pub(super) fn accept_up_to(queue: u16, id: u32) -> Vec<u8> {
    verdict(NFQNL_MSG_VERDICT_BATCH, queue, NF_ACCEPT, id)
}

/// Drops this packet.
pub(super) fn drop_one(queue: u16, id: u32) -> Vec<u8> {
    verdict(NFQNL_MSG_VERDICT, queue, NF_DROP, id)
}

fn config(queue: u16, kind: u16, value: &[u8]) -> Vec<u8> {
    request(NFQNL_MSG_CONFIG, NLM_F_ACK, queue, kind, value)
}

fn verdict(message: u16, queue: u16, verdict: u32, id: u32) -> Vec<u8> {
    let value = [verdict.to_be_bytes(), id.to_be_bytes()].concat();
    request(message, 0, queue, NFQA_VERDICT_HDR, &value)
}

fn request(message: u16, flags: u16, queue: u16, kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute = 4 + value.len();
    let length = HEADERS + attribute.next_multiple_of(4);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend((NFNL_SUBSYS_QUEUE | message).to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number and port: nobody looks at them.
    bytes.extend([0; 8]);
    // Family and version, both 0.
    bytes.extend([0; 2]);
    bytes.extend(queue.to_be_bytes());
    bytes.extend((attribute as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length, 0);
    bytes
}

/// Whether the kernel has done what it was asked.
pub(super) fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let code = match (word(answer, 4), long(answer, NETLINK_HEADER)) {
        (Some(NLMSG_ERROR), Some(code)) => code.cast_signed(),
        _ => return Err(io::Error::other("the kernel answered something else")),
    };
    if code == 0 {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(-code))
}

/// A packet that waits for its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) id: u32,
    /// From the IP header on.
    pub(super) bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a message of the kernel's. `None` if it is none of a packet.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        if word(message, 4)? != NFNL_SUBSYS_QUEUE | NFQNL_MSG_PACKET {
            return None;
        }
        let (mut id, mut payload) = (None, &[][..]);
        let mut rest = message.get(HEADERS..)?;
        while rest.len() >= 4 {
            let (length, kind) = (usize::from(word(rest, 0)?), word(rest, 2)?);
            let value = rest.get(4..length)?;
            match kind {
                NFQA_PACKET_HDR => {
                    let number = value.get(..4)?.try_into().ok()?;
                    id = Some(u32::from_be_bytes(number));
                }
                NFQA_PAYLOAD => payload = value,
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(Self {
            id: id?,
            bytes: payload,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_ne_bytes(bytes))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_as_the_kernel_reads_it() {
        let verdict = accept_up_to(7, 258);
        assert_eq!(long(&verdict, 0), Some(32));
        assert_eq!(word(&verdict, 4), Some(0x303));
        assert_eq!(verdict[18..20], [0, 7]);
        assert_eq!(verdict[24..], [0, 0, 0, 1, 0, 0, 1, 2]);
        // Padded to whole words, with its own length inside.
        let copy = copy(7, 128);
        assert_eq!((copy.len(), word(&copy, 20)), (32, Some(9)));
    }

    #[test]
    fn a_packet_is_read_and_cut_messages_are_not() {
        let mut message = request(
            NFQNL_MSG_PACKET,
            0,
            7,
            NFQA_PACKET_HDR,
            &[0, 0, 0, 9, 8, 0, 3],
        );
        message.extend(7u16.to_ne_bytes());
        message.extend(NFQA_PAYLOAD.to_ne_bytes());
        message.extend([0x45, 0, 0, 0]);
        let packet = Packet::parse(&message).unwrap();
        assert_eq!((packet.id, packet.bytes), (9, &[0x45, 0, 0][..]));
        for length in 0..HEADERS + 4 {
            assert_eq!(Packet::parse(&message[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn an_answer_is_an_error_code() {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        acknowledged(&answer).unwrap();
        answer[16..20].copy_from_slice(&(-1i32).to_ne_bytes());
        let refused = acknowledged(&answer).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(1));
        assert!(acknowledged(&[]).is_err());
    }
}
