//! An answer to one query: RFC 1034, section 4.3.2, with EDNS (RFC 6891).
//!
//! Nothing allocates but the buffer that the answer is written to, once. Limits: one
//! zone, class IN, no DNSSEC, no transfers, no updates.

use domain::base::iana::{Class, Opcode, OptRcode, Rcode, Rtype};
use domain::base::message_builder::{AdditionalBuilder, AnswerBuilder, StaticCompressor};
use domain::base::opt::OptRecord;
use domain::base::{Message, MessageBuilder, ParsedName, Question};
use domain::rdata::ZoneRecordData;

use super::zone::{Data, Found, Name, Node, RrSet, Zone, canonical};

/// What a UDP answer may have without EDNS (RFC 1035, 4.2.1).
const PLAIN_BYTES: u16 = 512;
/// What every path carries without fragments (DNS Flag Day 2020).
const EDNS_BYTES: u16 = 1232;
/// An OPT record without options.
const OPT_BYTES: usize = 11;
/// Aliases that are followed.
const ALIASES_MAX: usize = 8;
/// Of sets of addresses.
const ALL: usize = usize::MAX;

type Target = StaticCompressor<Vec<u8>>;
type Asked<'a> = Question<ParsedName<&'a [u8]>>;

/// How a query came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// What an EDNS query says of itself.
#[derive(Clone, Copy, Debug)]
struct Edns {
    payload_bytes: u16,
    dnssec_ok: bool,
    version: u8,
}

/// A query cannot be understood.
struct FormatError;

/// What is to be said.
struct Decision<'a> {
    rcode: Rcode,
    authoritative: bool,
    answers: [Option<&'a RrSet>; ALIASES_MAX + 1],
    authority: Option<&'a RrSet>,
}

impl Zone {
    /// Writes the answer to `query` to `out`, in place of what is there. False: there is
    /// nothing to say.
    pub(super) fn answer(&self, query: &[u8], transport: Transport, out: &mut Vec<u8>) -> bool {
        out.clear();
        let Ok(message) = Message::from_octets(query) else {
            return false;
        };
        // An answer to an answer would be the beginning of a loop.
        if message.header().qr() {
            return false;
        }
        let target = StaticCompressor::new(std::mem::take(out));
        let Ok(builder) = MessageBuilder::from_target(target);
        *out = self.respond(&message, transport, builder).into_target();
        true
    }

    fn respond(
        &self,
        message: &Message<&[u8]>,
        transport: Transport,
        mut builder: MessageBuilder<Target>,
    ) -> Target {
        let edns = Edns::of(message);
        let found = edns.as_ref().ok().copied().flatten();
        let payload_bytes = found.map_or(PLAIN_BYTES, |edns| edns.payload_bytes);
        let limit = match transport {
            Transport::Udp => usize::from(payload_bytes.clamp(PLAIN_BYTES, EDNS_BYTES)),
            Transport::Tcp => usize::from(u16::MAX),
        };
        // What would reach the limit is refused.
        builder.set_push_limit(limit + 1 - found.map_or(0, |_| OPT_BYTES));
        let unasked = |builder: MessageBuilder<Target>, rcode| {
            finish(
                builder.start_error(message, rcode).additional(),
                found,
                rcode.into(),
            )
        };
        // Of what operation else is not known what it consists of.
        if message.header().opcode() != Opcode::QUERY {
            return unasked(builder, Rcode::NOTIMP);
        }
        let Ok(asked) = message.sole_question() else {
            return unasked(builder, Rcode::FORMERR);
        };
        if edns.is_err() {
            return unasked(builder, Rcode::FORMERR);
        }
        if found.is_some_and(|edns| edns.version != 0) {
            let builder = builder.start_error(message, Rcode::NOERROR);
            return finish(builder.additional(), found, OptRcode::BADVERS);
        }
        let decision = self.decide(&asked);
        let mut builder = builder.start_error(message, decision.rcode);
        builder.header_mut().set_aa(decision.authoritative);
        let builder = self.write(builder, &asked, &decision);
        finish(builder, found, decision.rcode.into())
    }

    fn decide(&self, asked: &Asked<'_>) -> Decision<'_> {
        let rtype = asked.qtype();
        let class = asked.qclass();
        let transfer = matches!(rtype, Rtype::AXFR | Rtype::IXFR);
        let mut decision = Decision {
            rcode: Rcode::NOERROR,
            authoritative: true,
            answers: [None; ALIASES_MAX + 1],
            authority: None,
        };
        if transfer || !matches!(class, Class::IN | Class::ANY) {
            return decision.refused();
        }
        let mut name = canonical(asked.qname());
        for place in 0..=ALIASES_MAX {
            let node = match self.find(&name, rtype) {
                Found::Here(node) => node,
                Found::Elsewhere if place == 0 => return decision.refused(),
                // The resolver goes on by itself.
                Found::Elsewhere => break,
                Found::Delegated(servers) => {
                    decision.authoritative = place > 0;
                    decision.authority = Some(servers);
                    break;
                }
                Found::Missing => {
                    decision.rcode = Rcode::NXDOMAIN;
                    decision.authority = Some(self.negative());
                    break;
                }
            };
            let Some(set) = answer_of(node, rtype) else {
                decision.authority = Some(self.negative());
                break;
            };
            let mut seen = decision.answers[..place].iter().flatten();
            if seen.any(|&seen| std::ptr::eq(seen, set)) {
                break;
            }
            decision.answers[place] = Some(set);
            match target_of(set) {
                Some(target) if rtype != set.rtype && rtype != Rtype::ANY => {
                    name = canonical(target);
                }
                _ => break,
            }
        }
        decision
    }

    /// Writes the sections. What is needed and does not fit leaves the question alone,
    /// with the mark that there is more (RFC 2181, section 9).
    fn write(
        &self,
        mut builder: AnswerBuilder<Target>,
        asked: &Asked<'_>,
        decision: &Decision<'_>,
    ) -> AdditionalBuilder<Target> {
        let mut owner: Option<&Name> = None;
        for set in decision.answers.iter().flatten() {
            // Of the name as it was asked for, or of an alias's target: also where a wildcard
            // made it.
            let pushed = set.data.iter().try_for_each(|data| match owner {
                None => builder.push((asked.qname(), Class::IN, set.ttl, data)),
                Some(owner) => builder.push((owner, Class::IN, set.ttl, data)),
            });
            owner = target_of(set);
            if pushed.is_err() {
                return builder.tc_rewind_into().additional();
            }
        }
        let mut builder = builder.authority();
        if let Some(set) = decision.authority {
            let mut data = set.data.iter();
            let pushed =
                data.try_for_each(|data| builder.push((&set.owner, Class::IN, set.ttl, data)));
            if pushed.is_err() {
                return builder.answer().tc_rewind_into().additional();
            }
        }
        let mut builder = builder.additional();
        let servers = decision.authority.filter(|set| set.rtype == Rtype::NS);
        if let Some(servers) = servers
            && self.push_addresses(&mut builder, servers, ALL).is_err()
        {
            // Without them nobody finds the servers.
            return builder.answer().tc_rewind_into().additional();
        }
        // Behind aliases there is one set, which is not of servers then.
        if let Some(set) = decision.answers.iter().flatten().last()
            && servers.is_none()
            && let Err(whole) = self.push_addresses(&mut builder, set, ALL)
        {
            // These only save a question. A part of a set would be taken for all of it (RFC 2181,
            // section 9).
            builder.rewind();
            let _ = self.push_addresses(&mut builder, set, whole);
        }
        builder
    }

    /// Up to `most` sets of addresses of the hosts that these records name. Err: so many of them found
    /// room whole.
    fn push_addresses(
        &self,
        builder: &mut AdditionalBuilder<Target>,
        set: &RrSet,
        most: usize,
    ) -> Result<(), usize> {
        let sets = hosts_of(set).flat_map(|host| self.addresses(host));
        for (before, addresses) in sets.take(most).enumerate() {
            let mut data = addresses.data.iter();
            let pushed = data.try_for_each(|data| {
                builder.push((&addresses.owner, Class::IN, addresses.ttl, data))
            });
            pushed.map_err(|_| before)?;
        }
        Ok(())
    }
}

impl Decision<'_> {
    fn refused(mut self) -> Self {
        self.rcode = Rcode::REFUSED;
        self.authoritative = false;
        self
    }
}

/// The set that answers: of the type, the alias, or any.
fn answer_of(node: &Node, rtype: Rtype) -> Option<&RrSet> {
    match rtype {
        Rtype::ANY => node.any(),
        rtype => node.get(rtype).or_else(|| node.get(Rtype::CNAME)),
    }
}

/// The name that an alias stands for.
fn target_of(set: &RrSet) -> Option<&Name> {
    match set.data.first() {
        Some(ZoneRecordData::Cname(alias)) => Some(alias.cname()),
        _ => None,
    }
}

/// The hosts that these records name, each once. As servers they are named once anyway.
fn hosts_of(set: &RrSet) -> impl Iterator<Item = &Name> {
    let is_new = |place: usize, host: &Name| {
        let mut before = set.data[..place].iter().filter_map(host_of);
        set.rtype == Rtype::NS || before.all(|other| other != host)
    };
    let named = set.data.iter().enumerate();
    named.filter_map(move |(place, data)| host_of(data).filter(|host| is_new(place, host)))
}

/// The host that a record names, whose addresses are wanted next.
fn host_of(data: &Data) -> Option<&Name> {
    match data {
        ZoneRecordData::Ns(data) => Some(data.nsdname()),
        ZoneRecordData::Mx(data) => Some(data.exchange()),
        ZoneRecordData::Srv(data) => Some(data.target()),
        _ => None,
    }
}

/// Adds what EDNS says of this server, if the query has it.
fn finish(mut builder: AdditionalBuilder<Target>, edns: Option<Edns>, rcode: OptRcode) -> Target {
    builder.clear_push_limit();
    if let Some(edns) = edns {
        // There was room kept for it.
        let _ = builder.opt(|opt| {
            opt.set_udp_payload_size(EDNS_BYTES);
            opt.set_dnssec_ok(edns.dnssec_ok);
            opt.set_rcode(rcode);
            Ok(())
        });
    }
    builder.finish()
}

impl Edns {
    /// Of a query: none, or the one it has (RFC 6891, 6.1.1).
    fn of(message: &Message<&[u8]>) -> Result<Option<Self>, FormatError> {
        let records = message.additional().map_err(|_| FormatError)?;
        let mut found = None;
        for record in records {
            let record = record.map_err(|_| FormatError)?;
            if record.rtype() != Rtype::OPT {
                continue;
            }
            let record = record.into_record().map_err(|_| FormatError)?;
            let opt = record.map(OptRecord::from_record).ok_or(FormatError)?;
            let edns = Self {
                payload_bytes: opt.udp_payload_size(),
                dnssec_ok: opt.dnssec_ok(),
                version: opt.version(),
            };
            if found.replace(edns).is_some() {
                return Err(FormatError);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
