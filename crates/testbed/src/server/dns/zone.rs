//! A zone in memory: what exists, and where others take over.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;
use domain::base::iana::{Class, Rtype};
use domain::base::name::FlattenInto;
use domain::base::{Record, ToName, Ttl};
use domain::rdata::{Cname, Dname, Mx, Ns, Ptr, Soa, Srv, ZoneRecordData};
use domain::zonefile::inplace::{self, Entry, Zonefile};
use octseq::Array;

pub(super) type Name = domain::base::Name<Bytes>;
pub(super) type Data = ZoneRecordData<Bytes, Name>;
/// A name in lower case, as it is sent: by that nodes are found.
pub(super) struct Canonical(Array<255>);

/// A label, as it is sent.
const WILDCARD: &[u8] = b"\x01*";
/// A name has 255 bytes and a label at least two, but for the last.
const LABELS_MAX: usize = 128;

/// The records of one type at a name.
#[derive(Debug)]
pub(super) struct RrSet {
    pub(super) owner: Name,
    pub(super) rtype: Rtype,
    pub(super) ttl: Ttl,
    pub(super) data: Vec<Data>,
}

/// A name that exists; without records if only names below it have some.
#[derive(Debug, Default)]
pub(super) struct Node(Vec<RrSet>);

/// What a name is.
#[derive(Debug)]
pub(super) enum Found<'a> {
    /// Not of this zone.
    Elsewhere,
    /// There, or made by a wildcard.
    Here(&'a Node),
    /// Below a name that another server answers for: the servers' names.
    Delegated(&'a RrSet),
    /// Not there.
    Missing,
}

/// A zone.
#[derive(Debug)]
pub(super) struct Zone {
    /// In lower case, as it is sent.
    apex: Vec<u8>,
    nodes: HashMap<Box<[u8]>, Node, foldhash::fast::RandomState>,
    /// The SOA with the time for which a negative answer may be kept (RFC 2308).
    negative: RrSet,
}

impl Node {
    pub(super) fn get(&self, rtype: Rtype) -> Option<&RrSet> {
        self.0.iter().find(|set| set.rtype == rtype)
    }

    /// Any of its sets: what is answered to a question for all (RFC 8482).
    pub(super) fn any(&self) -> Option<&RrSet> {
        self.0.first()
    }

    fn insert(&mut self, record: Record<Name, Data>) -> Result<(), &'static str> {
        let (rtype, ttl) = (record.rtype(), record.ttl());
        if rtype == Rtype::DNAME {
            return Err("has a DNAME, which is not known here: give each name below it a CNAME");
        }
        let alias = |rtype| rtype == Rtype::CNAME;
        if self.0.iter().any(|set| alias(set.rtype) || alias(rtype)) {
            return Err("stands beside a CNAME, which must be alone");
        }
        if let Some(set) = self.0.iter_mut().find(|set| set.rtype == rtype) {
            // They have to be equal (RFC 2181, 5.2).
            set.ttl = set.ttl.min(ttl);
            // Nor does a set have a record twice (RFC 2181, 5).
            if !set.data.contains(record.data()) {
                set.data.push(record.into_data());
            }
            return Ok(());
        }
        self.0.push(RrSet {
            owner: record.owner().clone(),
            rtype,
            ttl,
            data: vec![record.into_data()],
        });
        Ok(())
    }
}

impl Zone {
    /// Reads a zone file (RFC 1035, section 5).
    ///
    /// # Errors
    ///
    /// It cannot be read, or says something that is no zone.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = fs::read(path)?;
        Self::parse(&text).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let mut bytes = text;
        let mut file = Zonefile::load(&mut bytes).map_err(|error| error.to_string())?;
        let wrong = |error: inplace::Error| at_its_line(text, &error.to_string());
        let mut records = Vec::new();
        while let Some(entry) = file.next_entry().map_err(wrong)? {
            match entry {
                Entry::Record(record) => records.push(at_origin(record.flatten_into())),
                Entry::Include { .. } => {
                    return Err("$INCLUDE is not known here: put all in one file".to_owned());
                }
            }
        }
        let mut starts = records.iter().filter(|record: &&Record<Name, Data>| {
            record.rtype() == Rtype::SOA && record.class() == Class::IN
        });
        let (Some(soa), None) = (starts.next(), starts.next()) else {
            return Err("a zone has exactly one SOA record, of class IN".to_owned());
        };
        let mut zone = Self {
            apex: canonical(soa.owner()).as_slice().to_vec(),
            nodes: HashMap::default(),
            negative: negative(soa)?,
        };
        for record in records {
            let owner = record.owner().clone();
            zone.insert(record)
                .map_err(|why| format!("{owner} {why}"))?;
        }
        Ok(zone)
    }

    fn insert(&mut self, record: Record<Name, Data>) -> Result<(), &'static str> {
        let owner = canonical(record.owner());
        let starts = self.starts(owner.as_slice());
        let starts = starts.ok_or("is not of this zone")?;
        if record.class() != Class::IN {
            return Err("is of another class than IN");
        }
        // Names above it exist from now on as well.
        for start in starts {
            let name = owner.as_slice()[start..].into();
            self.nodes.entry(name).or_default();
        }
        let node = self.nodes.get_mut(owner.as_slice());
        node.expect("the last of its names").insert(record)
    }

    /// What this name is, to somebody who asks for `rtype`: whether a name that others
    /// answer for is signed is asked of us (RFC 4035, 3.1.4.1).
    pub(super) fn find(&self, name: &Canonical, rtype: Rtype) -> Found<'_> {
        let name = name.as_slice();
        let Some(starts) = self.starts(name) else {
            return Found::Elsewhere;
        };
        let mut above = &self.apex[..];
        for start in starts {
            let at = &name[start..];
            let Some(node) = self.nodes.get(at) else {
                return self.wildcard(above);
            };
            let last = start == 0;
            let is_cut = at.len() > self.apex.len() && !(last && rtype == Rtype::DS);
            match node.get(Rtype::NS).filter(|_| is_cut) {
                Some(servers) => return Found::Delegated(servers),
                None if last => return Found::Here(node),
                None => above = at,
            }
        }
        Found::Missing
    }

    fn wildcard(&self, above: &[u8]) -> Found<'_> {
        let mut name = [0; WILDCARD.len() + 255];
        let length = WILDCARD.len() + above.len();
        name[..WILDCARD.len()].copy_from_slice(WILDCARD);
        name[WILDCARD.len()..length].copy_from_slice(above);
        let node = self.nodes.get(&name[..length]);
        node.map_or(Found::Missing, Found::Here)
    }

    /// The addresses of a server, below a delegation or not.
    pub(super) fn addresses(&self, name: &Name) -> impl Iterator<Item = &RrSet> {
        let node = self.nodes.get(canonical(name).as_slice());
        let types = [Rtype::A, Rtype::AAAA];
        types.into_iter().filter_map(move |rtype| node?.get(rtype))
    }

    /// The SOA of a negative answer.
    pub(super) fn negative(&self) -> &RrSet {
        &self.negative
    }

    /// Where in `name` the zone's apex begins, the name below it, and so on to the
    /// whole name. Nothing if it is not of this zone.
    fn starts(&self, name: &[u8]) -> Option<impl Iterator<Item = usize> + use<>> {
        let mut starts = [0_u8; LABELS_MAX];
        let (mut count, mut at) = (0, 0);
        while name.len() - at > self.apex.len() {
            at += usize::from(name[at]) + 1;
            count += 1;
            starts[count] = at as u8;
        }
        let ours = name.get(at..) == Some(&self.apex[..]);
        ours.then(|| (0..=count).rev().map(move |place| starts[place].into()))
    }
}

/// The parser names the place (`line:column: why`) where it would go on: behind a fault at the end
/// of a line that is the next one, or one behind blank lines and comments.
fn at_its_line(text: &[u8], told: &str) -> String {
    let mut parts = told.splitn(3, ':');
    let mut number = || parts.next()?.parse::<usize>().ok();
    let (Some(line), Some(column)) = (number(), number()) else {
        return told.to_owned();
    };
    let why = parts.next().unwrap_or_default().trim();
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').take(line).collect();
    let has_words = |place: usize| {
        let read = if place + 1 == line {
            column.saturating_sub(1)
        } else {
            usize::MAX
        };
        let read = &lines[place][..read.min(lines[place].len())];
        let words = read.split(|byte| *byte == b';').next().unwrap_or_default();
        !words.trim_ascii().is_empty()
    };
    let last = (0..lines.len()).rev().find(|place| has_words(*place));
    format!("line {}: {why}", last.map_or(line, |place| place + 1))
}

/// In lower case.
pub(super) fn canonical(name: &impl ToName) -> Canonical {
    let mut bytes = Array::default();
    // Names are not longer. If one were, what is there of it would be nobody's.
    let _ = name.compose_canonical(&mut bytes);
    Canonical(bytes)
}

impl Canonical {
    fn as_slice(&self) -> &[u8] {
        self.0.as_ref()
    }
}

/// What a negative answer carries.
fn negative(soa: &Record<Name, Data>) -> Result<RrSet, String> {
    let ZoneRecordData::Soa(data) = soa.data() else {
        return Err("the SOA record is none".to_owned());
    };
    Ok(RrSet {
        owner: soa.owner().clone(),
        rtype: Rtype::SOA,
        ttl: soa.ttl().min(data.minimum()),
        data: vec![soa.data().clone()],
    })
}

/// The parser knows a free-standing `@` as an owner alone. In data it stands for the origin as well
/// (RFC 1035, 5.1), and is read as a label before it. (So is one that was meant as a label, `\@`.)
fn at_origin(record: Record<Name, Data>) -> Record<Name, Data> {
    let (owner, class, ttl) = (record.owner().clone(), record.class(), record.ttl());
    let data = match record.into_data() {
        Data::Ns(data) => Ns::new(origin(data.nsdname())).into(),
        Data::Cname(data) => Cname::new(origin(data.cname())).into(),
        Data::Dname(data) => Dname::new(origin(data.dname())).into(),
        Data::Ptr(data) => Ptr::new(origin(data.ptrdname())).into(),
        Data::Mx(data) => Mx::new(data.preference(), origin(data.exchange())).into(),
        Data::Srv(data) => {
            let target = origin(data.target());
            Srv::new(data.priority(), data.weight(), data.port(), target).into()
        }
        Data::Soa(data) => Soa::new(
            origin(data.mname()),
            origin(data.rname()),
            data.serial(),
            data.refresh(),
            data.retry(),
            data.expire(),
            data.minimum(),
        )
        .into(),
        data => data,
    };
    Record::new(owner, class, ttl, data)
}

/// What a name of a record's data stands for.
fn origin(name: &Name) -> Name {
    match name.parent() {
        Some(parent) if name.first().as_slice() == b"@" => parent,
        _ => name.clone(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::str::FromStr;

    use super::*;

    /// A zone with everything that is looked up differently.
    pub(in super::super) const ZONE: &str = "\
$ORIGIN Example.test.
$TTL 3600
@ IN SOA ns admin 1 3600 900 604800 300
@ IN NS ns
@ IN MX 10 mail
ns IN A 192.0.2.1
ns IN AAAA 2001:db8::1
mail IN A 192.0.2.2
deep.below IN A 192.0.2.3
*.wild IN TXT \"made\"
alias IN CNAME mail
chain IN CNAME alias
outside IN CNAME www.elsewhere.test.
dangling IN CNAME nobody
loop IN CNAME loop
child IN NS ns.child
ns.child IN A 192.0.2.4
";

    pub(in super::super) fn zone(text: &str) -> Result<Zone, String> {
        Zone::parse(text.as_bytes())
    }

    fn found(zone: &Zone, name: &str) -> String {
        let name = canonical(&domain::base::Name::<Vec<u8>>::from_str(name).unwrap());
        match zone.find(&name, Rtype::A) {
            Found::Elsewhere => "elsewhere".to_owned(),
            Found::Missing => "missing".to_owned(),
            Found::Delegated(servers) => format!("delegated by {}", servers.owner),
            Found::Here(node) => {
                let types = node.0.iter().map(|set| set.rtype.to_string());
                types.collect::<Vec<_>>().join(" ")
            }
        }
    }

    #[test]
    fn names_are_found_as_rfc_1034_says() {
        let zone = zone(ZONE).unwrap();
        for (name, what) in [
            ("example.test", "SOA NS MX"),
            ("NS.EXAMPLE.test", "A AAAA"),
            ("below.example.test", ""),
            ("deep.below.example.test", "A"),
            ("other.below.example.test", "missing"),
            ("a.wild.example.test", "TXT"),
            ("a.b.wild.example.test", "TXT"),
            ("wild.example.test", ""),
            ("child.example.test", "delegated by child.Example.test"),
            ("a.ns.child.example.test", "delegated by child.Example.test"),
            ("nobody.example.test", "missing"),
            ("test", "elsewhere"),
            (".", "elsewhere"),
            ("xexample.test", "elsewhere"),
            ("example.tes", "elsewhere"),
        ] {
            assert_eq!(found(&zone, name), what, "{name}");
        }
    }

    /// A label was made of it, and each such name was unknown.
    #[test]
    fn the_origin_stands_for_itself_in_data_too() {
        let zone = zone(
            "$ORIGIN a.test.\n@ 1 IN SOA ns @ 1 2 3 4 5\nwww 1 IN CNAME @\n@ 1 IN MX 10 @\n\
             s 1 IN SRV 0 0 5 @\n$ORIGIN b.a.test.\nx 1 IN NS @\n",
        );
        let zone = zone.unwrap();
        for (name, rtype, data) in [
            ("a.test", Rtype::SOA, "ns.a.test a.test 1 2 3 4 5"),
            ("www.a.test", Rtype::CNAME, "a.test"),
            ("a.test", Rtype::MX, "10 a.test"),
            ("s.a.test", Rtype::SRV, "0 0 5 a.test"),
            ("x.b.a.test", Rtype::NS, "b.a.test"),
        ] {
            let name = canonical(&domain::base::Name::<Vec<u8>>::from_str(name).unwrap());
            let node = &zone.nodes[name.as_slice()];
            let set = node.0.iter().find(|set| set.rtype == rtype).unwrap();
            let told = set.data[0].to_string().replace("test.", "test");
            assert_eq!(told, data);
        }
    }

    #[test]
    fn a_record_that_stands_twice_is_one() {
        let twice = zone(&format!("{ZONE}ns IN A 192.0.2.1\nns IN A 192.0.2.9\n")).unwrap();
        let name = domain::base::Name::<Vec<u8>>::from_str("ns.example.test").unwrap();
        let node = &twice.nodes[canonical(&name).as_slice()];
        assert_eq!(node.get(Rtype::A).unwrap().data.len(), 2);
    }

    #[test]
    fn whether_a_child_is_signed_is_answered_here() {
        let zone = zone(ZONE).unwrap();
        let child = domain::base::Name::<Vec<u8>>::from_str("child.example.test").unwrap();
        let found = zone.find(&canonical(&child), Rtype::DS);
        assert!(matches!(found, Found::Here(_)), "{found:?}");
    }

    #[test]
    fn what_is_no_zone_is_refused_with_a_reason() {
        for (text, why) in [
            ("", "exactly one SOA"),
            ("$ORIGIN a.\n@ 1 IN A 192.0.2.1\n", "exactly one SOA"),
            (
                "$ORIGIN a.\n@ 1 IN SOA n m 1 2 3 4 5\nb. 1 IN A 192.0.2.1\n",
                "b is not of this zone",
            ),
            (
                "$ORIGIN a.\n@ 1 IN SOA n m 1 2 3 4 5\nb 1 IN CNAME c\nb 1 IN A 192.0.2.1\n",
                "CNAME",
            ),
            (
                "$ORIGIN a.\n@ 1 IN SOA n m 1 2 3 4 5\nb 1 IN DNAME c.test.\n",
                "b.a has a DNAME",
            ),
            ("$ORIGIN a.\n$INCLUDE other\n", "$INCLUDE"),
            ("$ORIGIN a.\n@ 1 IN A 192.0.2\n", "line 2: "),
            (
                "$ORIGIN a.\n@ 1 IN A 192.0.2 ; short\n\n; more\n  \nb 1 IN A 192.0.2.1\n",
                "line 2: ",
            ),
            ("$ORIGIN a.\n@ 1 IN\nb 1 IN A 192.0.2.1\n", "line 2: "),
            ("$ORIGIN a.\n\n@ 1 IN NOTHING 7\n", "line 3: "),
            ("$ORIGIN a.\n@ 1 IN SOA n m (\n 1 2\n 3 x 5 )\n", "line 4: "),
        ] {
            let error = zone(text).unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
