//! An answer to one query: RFC 1034, section 4.3.2, with EDNS (RFC 6891).
//!
//! Nothing allocates but the buffer that the answer is written to, once. Limits: one
//! zone, class IN, no DNSSEC, no transfers, no updates.

use domain::base::iana::{Class, Opcode, OptRcode, Rcode, Rtype};
use domain::base::message_builder::{
    AdditionalBuilder, AnswerBuilder, PushError, StaticCompressor,
};
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
        builder.set_push_limit(limit - found.map_or(0, |_| OPT_BYTES));
        let unasked = |builder: MessageBuilder<Target>, rcode| {
            finish(
                builder.start_error(message, rcode).additional(),
                found,
                rcode.into(),
            )
        };
        let Ok(asked) = message.sole_question() else {
            return unasked(builder, Rcode::FORMERR);
        };
        if edns.is_err() {
            return unasked(builder, Rcode::FORMERR);
        }
        if message.header().opcode() != Opcode::QUERY {
            return unasked(builder, Rcode::NOTIMP);
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
            && self.push_addresses(&mut builder, servers).is_err()
        {
            // Without them nobody finds the servers.
            return builder.answer().tc_rewind_into().additional();
        }
        for set in decision.answers.iter().flatten() {
            // These only save a question.
            if self.push_addresses(&mut builder, set).is_err() {
                break;
            }
        }
        builder
    }

    /// Addresses of the hosts that these records name.
    fn push_addresses(
        &self,
        builder: &mut AdditionalBuilder<Target>,
        set: &RrSet,
    ) -> Result<(), PushError> {
        for host in set.data.iter().filter_map(host_of) {
            for addresses in self.addresses(host) {
                for data in &addresses.data {
                    builder.push((&addresses.owner, Class::IN, addresses.ttl, data))?;
                }
            }
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
mod tests {
    use std::fmt::Write as _;
    use std::str::FromStr;

    use domain::base::record::Record;
    use domain::rdata::AllRecordData;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::zone::tests::{ZONE, zone};
    use super::*;

    /// A query as a resolver sends it.
    fn query(name: &str, rtype: Rtype, payload_bytes: Option<u16>) -> Vec<u8> {
        let mut builder = MessageBuilder::new_vec().question();
        builder.header_mut().set_id(0x1234);
        builder.header_mut().set_rd(true);
        let name = domain::base::Name::<Vec<u8>>::from_str(name).unwrap();
        builder.push((name, rtype)).unwrap();
        let mut builder = builder.additional();
        if let Some(bytes) = payload_bytes {
            let opt = builder.opt(|opt| {
                opt.set_udp_payload_size(bytes);
                Ok(())
            });
            opt.unwrap();
        }
        builder.finish()
    }

    /// Everything of an answer but the header's constant parts: code, flags, and the
    /// types in each section.
    fn told(answer: &[u8]) -> String {
        let message = Message::from_octets(answer).unwrap();
        let header = message.header();
        let mut text = message.opt_rcode().to_string();
        for (flag, name) in [(header.aa(), " aa"), (header.tc(), " tc")] {
            text += if flag { name } else { "" };
        }
        let (_, answers, authority, additional) = message.sections().unwrap();
        for (name, section) in [("an", answers), ("au", authority), ("ad", additional)] {
            let mut types = section
                .map(|record| record.unwrap().rtype().to_string())
                .peekable();
            if types.peek().is_some() {
                let _ = write!(text, " {name}: {}", types.collect::<Vec<_>>().join(","));
            }
        }
        text
    }

    fn ask(name: &str, rtype: Rtype) -> String {
        let (zone, mut answer) = (zone(ZONE).unwrap(), Vec::new());
        let query = query(name, rtype, None);
        assert!(zone.answer(&query, Transport::Udp, &mut answer));
        told(&answer)
    }

    #[test]
    fn questions_get_what_rfc_1034_says() {
        for (name, rtype, what) in [
            ("mail.example.test", Rtype::A, "NOERROR aa an: A"),
            ("MAIL.Example.test", Rtype::A, "NOERROR aa an: A"),
            ("mail.example.test", Rtype::TXT, "NOERROR aa au: SOA"),
            ("example.test", Rtype::MX, "NOERROR aa an: MX ad: A"),
            ("example.test", Rtype::NS, "NOERROR aa an: NS ad: A,AAAA"),
            ("nobody.example.test", Rtype::A, "NXDOMAIN aa au: SOA"),
            ("below.example.test", Rtype::A, "NOERROR aa au: SOA"),
            ("any.wild.example.test", Rtype::TXT, "NOERROR aa an: TXT"),
            ("any.wild.example.test", Rtype::A, "NOERROR aa au: SOA"),
            ("alias.example.test", Rtype::A, "NOERROR aa an: CNAME,A"),
            (
                "chain.example.test",
                Rtype::A,
                "NOERROR aa an: CNAME,CNAME,A",
            ),
            ("alias.example.test", Rtype::CNAME, "NOERROR aa an: CNAME"),
            ("outside.example.test", Rtype::A, "NOERROR aa an: CNAME"),
            (
                "dangling.example.test",
                Rtype::A,
                "NXDOMAIN aa an: CNAME au: SOA",
            ),
            ("loop.example.test", Rtype::A, "NOERROR aa an: CNAME"),
            ("a.child.example.test", Rtype::A, "NOERROR au: NS ad: A"),
            ("child.example.test", Rtype::NS, "NOERROR au: NS ad: A"),
            ("child.example.test", Rtype::DS, "NOERROR aa au: SOA"),
            ("ns.example.test", Rtype::ANY, "NOERROR aa an: A"),
            ("example.test", Rtype::AXFR, "REFUSED"),
            ("example.com", Rtype::A, "REFUSED"),
        ] {
            assert_eq!(ask(name, rtype), what, "{name} {rtype}");
        }
    }

    #[test]
    fn the_answer_is_of_the_name_that_was_asked_for() {
        let (zone, mut answer) = (zone(ZONE).unwrap(), Vec::new());
        zone.answer(
            &query("a.Wild.example.TEST", Rtype::TXT, None),
            Transport::Udp,
            &mut answer,
        );
        let message = Message::from_octets(&answer[..]).unwrap();
        let record = message.answer().unwrap().next().unwrap().unwrap();
        assert_eq!(record.owner().to_string(), "a.Wild.example.TEST");
        assert_eq!(message.header().id(), 0x1234);
        assert!(message.header().rd() && !message.header().ra());
    }

    /// It was of the wildcard, which a resolver takes for the answer to another question.
    #[test]
    fn the_answer_behind_an_alias_is_of_its_target() {
        let text = format!("{ZONE}made IN CNAME a.wild\n*.wild IN A 192.0.2.5\n");
        let (zone, mut answer) = (zone(&text).unwrap(), Vec::new());
        let query = query("made.example.test", Rtype::A, None);
        zone.answer(&query, Transport::Udp, &mut answer);
        let message = Message::from_octets(&answer[..]).unwrap();
        let owners = message.answer().unwrap().map(|one| one.unwrap().owner());
        let owners: Vec<_> = owners.map(|owner| owner.to_string()).collect();
        assert_eq!(owners, ["made.example.test", "a.wild.example.test"]);
    }

    /// Too much for 512 bytes, and for 1232.
    fn large(records: usize) -> Zone {
        let mut text = "$ORIGIN l.\n@ 1 IN SOA n m 1 2 3 4 5\n".to_owned();
        for number in 0..records {
            let _ = writeln!(text, "t 1 IN TXT \"{number:0100}\"");
        }
        zone(&text).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_told_to_be_more_and_fits_over_tcp() {
        for (records, payload_bytes, fits) in [
            (3, None, true),
            (5, None, false),
            (5, Some(1232), true),
            (5, Some(100), false),
            (20, Some(4096), false),
        ] {
            let (zone, mut answer) = (large(records), Vec::new());
            let query = query("t.l", Rtype::TXT, payload_bytes);
            zone.answer(&query, Transport::Udp, &mut answer);
            let limit = payload_bytes.unwrap_or(0).clamp(PLAIN_BYTES, EDNS_BYTES);
            assert!(answer.len() <= usize::from(limit), "{}", answer.len());
            assert_eq!(
                told(&answer).contains("tc"),
                !fits,
                "{records} {payload_bytes:?}"
            );
            zone.answer(&query, Transport::Tcp, &mut answer);
            let message = Message::from_octets(&answer[..]).unwrap();
            assert_eq!(usize::from(message.header_counts().ancount()), records);
        }
    }

    #[test]
    fn edns_is_answered_and_only_version_0_known() {
        let (zone, mut answer) = (zone(ZONE).unwrap(), Vec::new());
        let mut query = query("mail.example.test", Rtype::A, Some(4096));
        zone.answer(&query, Transport::Udp, &mut answer);
        assert_eq!(told(&answer), "NOERROR aa an: A ad: OPT");
        let message = Message::from_octets(&answer[..]).unwrap();
        assert_eq!(message.opt().unwrap().udp_payload_size(), EDNS_BYTES);
        // The OPT record is the last: name, type, size, code, version.
        let opt = query.len() - OPT_BYTES;
        query[opt + 6] = 1;
        zone.answer(&query, Transport::Udp, &mut answer);
        assert_eq!(told(&answer), "BADVERS ad: OPT");
        let twice = query[opt..].to_vec();
        query.extend_from_slice(&twice);
        query[11] = 2;
        zone.answer(&query, Transport::Udp, &mut answer);
        assert_eq!(told(&answer), "FORMERR");
    }

    #[test]
    fn what_is_no_query_gets_an_error_or_silence() {
        let (zone, mut answer) = (zone(ZONE).unwrap(), Vec::new());
        let good = query("mail.example.test", Rtype::A, None);
        let mut changed = |at: usize, value: u8| {
            let mut query = good.clone();
            query[at] = value;
            let answered = zone.answer(&query, Transport::Udp, &mut answer);
            answered.then(|| told(&answer))
        };
        assert_eq!(changed(2, 0x80), None, "an answer");
        assert_eq!(changed(2, 0x28).as_deref(), Some("NOTIMP"), "an update");
        assert_eq!(changed(5, 0).as_deref(), Some("FORMERR"), "no question");
        assert_eq!(changed(5, 2).as_deref(), Some("FORMERR"), "two questions");
        assert_eq!(changed(11, 1).as_deref(), Some("FORMERR"), "no such record");
        let class = good.len() - 1;
        assert_eq!(changed(class, 3).as_deref(), Some("REFUSED"), "class CH");
        assert!(!zone.answer(&good[..11], Transport::Udp, &mut answer));
    }

    /// A good query, parts of which were overwritten, repeated or cut off.
    fn damaged() -> impl Strategy<Value = Vec<u8>> {
        let names = [
            "mail.example.test",
            "a.wild.example.test",
            "loop.example.test",
            "x.child.example.test",
        ];
        let parts = vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
        (
            0..names.len(),
            any::<u16>(),
            any::<Option<u16>>(),
            parts,
            any::<prop::sample::Index>(),
        )
            .prop_map(move |(name, rtype, payload_bytes, parts, length)| {
                let mut bytes = query(names[name], Rtype::from_int(rtype), payload_bytes);
                for (at, value) in parts {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
                bytes.truncate(1 + length.index(2 * bytes.len()));
                bytes
            })
    }

    proptest! {
        /// Whatever comes: no panic, and what goes is a message that fits and that was
        /// asked for.
        #[test]
        fn any_bytes_get_a_message_that_fits_or_nothing(
            bytes in prop_oneof![damaged(), vec(any::<u8>(), 0..600)],
            tcp: bool,
        ) {
            let (zone, mut answer) = (zone(ZONE).unwrap(), Vec::new());
            let transport = if tcp { Transport::Tcp } else { Transport::Udp };
            if !zone.answer(&bytes, transport, &mut answer) {
                prop_assert!(bytes.len() < 12 || bytes[2] & 0x80 != 0);
                return Ok(());
            }
            prop_assert_eq!(&answer[..2], &bytes[..2]);
            prop_assert!(answer[2] & 0x80 != 0);
            prop_assert!(tcp || answer.len() <= usize::from(EDNS_BYTES));
            let message = Message::from_octets(&answer[..]).unwrap();
            let (_, answers, authority, additional) = message.sections().unwrap();
            for record in answers.chain(authority).chain(additional) {
                let record = record.unwrap();
                let read: Record<_, AllRecordData<_, _>> = record.into_any_record().unwrap();
                prop_assert!(read.ttl().as_secs() <= 3600 || read.rtype() == Rtype::OPT);
            }
        }
    }
}
