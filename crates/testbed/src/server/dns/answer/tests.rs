//! Answers to queries of all kinds, also to damaged ones.

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

/// RFC 2181, section 9. A part of a host's addresses went as if they were all.
#[test]
fn addresses_of_a_host_that_save_a_question_come_all_or_not_at_all() {
    let mut text = format!("{ZONE}few IN MX 10 mail\nfew IN MX 20 many\n");
    for number in 1..=60 {
        let _ = writeln!(text, "many IN A 198.51.100.{number}");
    }
    let (zone, mut answer) = (zone(&text).unwrap(), Vec::new());
    let query = query("few.example.test", Rtype::MX, None);
    zone.answer(&query, Transport::Udp, &mut answer);
    assert_eq!(told(&answer), "NOERROR aa an: MX,MX ad: A");
    zone.answer(&query, Transport::Tcp, &mut answer);
    let message = Message::from_octets(&answer[..]).unwrap();
    assert_eq!(message.header_counts().arcount(), 61);
}

/// Two services on one host: a message has a record once (RFC 2181, section 5).
#[test]
fn addresses_of_a_host_that_is_named_twice_come_once() {
    let text = format!("{ZONE}twice IN SRV 0 0 1 mail\ntwice IN SRV 0 0 2 MAIL\n");
    let (zone, mut answer) = (zone(&text).unwrap(), Vec::new());
    let query = query("twice.example.test", Rtype::SRV, None);
    zone.answer(&query, Transport::Udp, &mut answer);
    assert_eq!(told(&answer), "NOERROR aa an: SRV,SRV ad: A");
}

/// It was cut where it had 512 bytes.
#[test]
fn what_fits_to_the_byte_is_not_cut() {
    let mut cut = 0;
    for bytes in 200..256 {
        let soa = "$ORIGIN l.\n@ 1 IN SOA n m 1 2 3 4 5\n";
        let text = format!("{soa}t 1 IN TXT \"{0:0250}\" \"{0:01$}\"\n", 0, bytes);
        let (zone, mut answer) = (zone(&text).unwrap(), Vec::new());
        let query = query("t.l", Rtype::TXT, None);
        zone.answer(&query, Transport::Tcp, &mut answer);
        let whole = answer.len();
        zone.answer(&query, Transport::Udp, &mut answer);
        let is_cut = told(&answer).contains("tc");
        assert_eq!(is_cut, whole > usize::from(PLAIN_BYTES), "{whole}");
        cut += usize::from(is_cut);
    }
    assert!((1..56).contains(&cut), "{cut}");
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

/// What follows the header of such a query is not known, and need not be questions (RFC 8906, 8.1.4; RFC
/// 8490, 5.1). It was a format error.
#[test]
fn an_unknown_operation_is_told_so_whatever_it_consists_of() {
    let (zone, mut answer) = (zone(ZONE).unwrap(), Vec::new());
    let mut header = [0; 12];
    for opcode in 1..16 {
        header[2] = opcode << 3;
        for records in 0..4 {
            header[5] = records;
            assert!(zone.answer(&header, Transport::Udp, &mut answer));
            assert_eq!(told(&answer), "NOTIMP", "{opcode}, {records}");
            assert_eq!(answer.len(), header.len());
        }
    }
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
