//! The lines of `docs/mechanisms.md` and what their states say.

/// One line of a table.
pub(crate) struct Entry<'a> {
    pub(crate) id: &'a str,
    pub(crate) meaning: &'a str,
    pub(crate) homes: Vec<&'a str>,
    state: &'a str,
}

/// What the last cell says.
#[derive(Debug, PartialEq)]
pub(crate) enum State<'a> {
    /// Shown by tests and claims; still missing in some of its homes.
    Done {
        evidence: Vec<&'a str>,
        planned_in: Vec<&'a str>,
    },
    Planned,
    LeftOut,
}

/// Every line of every table but the tables' heads.
pub(crate) fn entries(document: &str) -> Vec<Entry<'_>> {
    let lines = document.lines().filter(|line| line.starts_with('|'));
    let entries = lines.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[id, meaning, homes, state] = cells.as_slice() else {
            panic!("four cells wanted: {line}");
        };
        let homes = homes.split(", ").collect();
        Entry {
            id,
            meaning,
            homes,
            state,
        }
    });
    entries
        .filter(|entry| entry.id != "id" && entry.id != "---")
        .collect()
}

impl<'a> Entry<'a> {
    /// # Errors
    ///
    /// If the state has none of the three forms.
    pub(crate) fn state(&self) -> Result<State<'a>, String> {
        parse(self.state)
    }
}

/// Takes a state apart.
///
/// # Errors
///
/// If it has none of the three forms.
pub(crate) fn parse(state: &str) -> Result<State<'_>, String> {
    let unknown = || format!("neither `done: evidence`, `planned` nor `left out: reason`: {state}");
    if state == "planned" {
        return Ok(State::Planned);
    }
    let (form, said) = state.split_once(": ").ok_or_else(unknown)?;
    match form {
        _ if said.is_empty() => Err(unknown()),
        "planned" => Ok(State::Planned),
        "left out" => Ok(State::LeftOut),
        "done" => {
            let mut parts = said.split("; planned in ");
            let evidence = parts.next().unwrap_or_default().split(", ");
            let evidence = evidence.map(|one| one.strip_prefix('`')?.strip_suffix('`'));
            let planned =
                parts.map(|part| part.split_once(": ").filter(|(_, what)| !what.is_empty()));
            let (Some(evidence), Some(planned)) = (
                evidence.collect::<Option<Vec<&str>>>(),
                planned.collect::<Option<Vec<(&str, &str)>>>(),
            ) else {
                return Err(unknown());
            };
            Ok(State::Done {
                evidence,
                planned_in: planned.into_iter().map(|(home, _)| home).collect(),
            })
        }
        _ => Err(unknown()),
    }
}

#[test]
fn other_states_are_refused() {
    for state in [
        "",
        "done",
        "done: ",
        "done: core::quota::tests::a_fixed_quota_stays",
        "done: `a::b::c`; planned: more",
        "done: `a::b::c`; planned in sim",
        "done: `a::b::c`; planned in sim: ",
        "left out",
        "left out: ",
        "partly",
    ] {
        assert!(parse(state).is_err(), "{state}");
    }
    assert_eq!(
        parse("done: `a::b::c`, `mr-fig1.linear`; planned in stack: x; planned in sim: y, z"),
        Ok(State::Done {
            evidence: vec!["a::b::c", "mr-fig1.linear"],
            planned_in: vec!["stack", "sim"],
        })
    );
}
