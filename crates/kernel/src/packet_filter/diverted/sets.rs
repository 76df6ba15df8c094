//! The ports that a set of `nf_tables` has.

use std::ffi::CStr;
use std::io;
use std::ops::RangeInclusive;

use netlink_bindings::nftables::{
    IterableRuleAttrs, IterableSetelemAttrs, Nfgenmsg, Request, SetElemFlags, SetFlags,
};

use crate::netlink;

/// The table of a rule, where its sets are.
pub(super) struct Table<'a> {
    header: Nfgenmsg,
    name: &'a CStr,
}

/// An element of a set of ports.
struct Element {
    port: u16,
    /// The last port, where the element says it itself.
    last: Option<u16>,
    /// It is the first port after a range.
    ends: bool,
}

impl<'a> Table<'a> {
    pub(super) fn of(header: &Nfgenmsg, rule: &IterableRuleAttrs<'a>) -> Self {
        let header = Nfgenmsg {
            nfgen_family: header.nfgen_family,
            ..Nfgenmsg::default()
        };
        let name = rule.get_table().unwrap_or_default();
        Self { header, name }
    }

    /// The ports of a set; `None` if it is of something else as well.
    pub(super) fn ports(&self, set: &CStr) -> io::Result<Option<Vec<RangeInclusive<u16>>>> {
        let mut socket = netlink::Socket::new();
        let mut request = Request::new().op_getset_do(&self.header);
        request.encode().push_table(self.name).push_name(set);
        let mut replies = socket.request(&request)?;
        let (_, attributes) = replies.recv_one().map_err(io::Error::from)?;
        let has = |flag: SetFlags| attributes.get_flags().unwrap_or(0) & flag as u32 != 0;
        let has_ranges = has(SetFlags::Interval);
        if attributes.get_key_len().ok() != Some(2) {
            return Ok(None);
        }
        drop(replies);
        let elements = self.elements(set)?;
        Ok(elements.map(|elements| ranges(&elements, has_ranges)))
    }

    /// `None` if one is not understood.
    fn elements(&self, set: &CStr) -> io::Result<Option<Vec<Element>>> {
        let mut socket = netlink::Socket::new();
        let mut request = Request::new().op_getsetelem_dump(&self.header);
        request.encode().push_table(self.name).push_set(set);
        let mut replies = socket.request(&request)?;
        let mut elements = Vec::new();
        while let Some(reply) = replies.recv() {
            let (_, attributes) = reply?;
            let Ok(list) = attributes.get_elements() else {
                continue;
            };
            let understood: Option<Vec<_>> = list.get_elem().map(|one| element(&one)).collect();
            match understood {
                Some(more) => elements.extend(more),
                None => return Ok(None),
            }
        }
        Ok(Some(elements))
    }
}

fn element(one: &IterableSetelemAttrs<'_>) -> Option<Element> {
    let flags = one.get_flags().ok().and_then(|flags| flags.first_chunk());
    let flags = flags.map_or(0, |flags| u32::from_be_bytes(*flags));
    let port = |value: &[u8]| value.try_into().ok().map(u16::from_be_bytes);
    let key = one.get_key().ok()?;
    let last = one.get_key_end().ok();
    Some(Element {
        port: port(key.get_value().ok()?)?,
        last: last.and_then(|last| port(last.get_value().ok()?)),
        ends: flags & SetElemFlags::IntervalEnd as u32 != 0,
    })
}

/// A set of ranges has their first ports, and the first port after each, if there is one.
fn ranges(elements: &[Element], has_ranges: bool) -> Vec<RangeInclusive<u16>> {
    let last = |first: &Element| match first.last {
        Some(last) => last,
        None if !has_ranges => first.port,
        None => {
            let ends = elements.iter().filter(|one| one.ends);
            let ends = ends.filter(|end| end.port > first.port);
            ends.map(|end| end.port - 1).min().unwrap_or(u16::MAX)
        }
    };
    let firsts = elements.iter().filter(|one| !one.ends);
    firsts.map(|first| first.port..=last(first)).collect()
}
