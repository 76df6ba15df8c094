//! What a stranger copies compiles with this crate, and with public crates that it names.

use std::fs;
use std::path::Path;

/// Lines of the examples, the guide, and the documents of the crate's page and of paced senders.
fn copied() -> Vec<String> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let examples = fs::read_dir(home.join("examples")).unwrap();
    let examples = examples.map(|one| text(&one.unwrap().path()));
    let whole = examples.chain([text(&home.join("../../docs/stack.md"))]);
    let documents = ["src/lib.rs", "src/socket/paced.rs"].map(|one| text(&home.join(one)));
    let of_documents = documents.iter().flat_map(|text| text.lines());
    let of_documents = of_documents.filter(|line| line.starts_with("//"));
    let whole: Vec<_> = whole.collect();
    let all = whole
        .iter()
        .flat_map(|text| text.lines())
        .chain(of_documents);
    all.map(ToOwned::to_owned).collect()
}

/// The paced ones took their rates from `plimsoll_core`, which is no dependency of who has added this crate.
#[test]
fn examples_take_nothing_of_crates_below_this_one() {
    let lines = copied();
    let uses = |name: &str| {
        let uses = lines.iter().filter(|line| line.contains(name));
        uses.cloned().collect::<Vec<_>>()
    };
    let ours = uses("use plimsoll_stack");
    assert!(ours.len() > 10, "{ours:?}");
    let all = uses("use plimsoll_");
    assert_eq!(all, ours);
}
