//! The scores that documents tell are those of the runs that were kept. That on real
//! packets is counted from several runs.
//!
//! README told 145 claims when the files had 163: runs were added to
//! `experiments/claims-real.txt`, and nobody counted again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lab::{Catalogue, Kind};

/// Its rates were multiples of a wrong unit: no verdict of it says anything.
const WITHOUT_A_UNIT: &str = "real-lrp-sockets";

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    fs::read_to_string(path).unwrap()
}

/// What became of claims, in the order of the documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Score {
    hold: usize,
    fail: usize,
    undecided: usize,
    unmeasured: usize,
}

impl Score {
    fn count(&mut self, line: &str) {
        let without_a_value = [
            "outside the measured range",
            "not a number",
            "no point lies",
        ];
        *match line.chars().next() {
            Some('✓') => &mut self.hold,
            Some('✗') => &mut self.fail,
            _ if without_a_value.iter().any(|why| line.contains(why)) => &mut self.unmeasured,
            _ => &mut self.undecided,
        } += 1;
    }

    fn total(self) -> usize {
        self.hold + self.fail + self.undecided + self.unmeasured
    }
}

/// The last line of each claim, by experiment and claim.
fn last() -> BTreeMap<(String, String), String> {
    let text = read("experiments/claims-real.txt");
    let mut last = BTreeMap::new();
    let mut experiment = "";
    for line in text.lines() {
        let Some(claim) = line.strip_prefix("  ") else {
            experiment = line.split("  ").next().unwrap();
            continue;
        };
        let mut words = claim.split(' ');
        if let (Some("✓" | "✗" | "?"), Some(_), Some(id)) =
            (words.next(), words.next(), words.next())
        {
            let id = id.trim_end_matches(':').to_owned();
            last.insert((experiment.to_owned(), id), claim.to_owned());
        }
    }
    last
}

/// Of all test claims, those without a unit apart, and by paper.
fn scores() -> (Score, Score, BTreeMap<String, Score>) {
    let last = last();
    let (mut all, mut apart, mut by_paper) = (Score::default(), Score::default(), BTreeMap::new());
    let experiments = Catalogue::built_in().unwrap();
    for experiment in experiments.select(&["real".to_owned()]).unwrap() {
        let claims = experiment.claims.iter();
        for claim in claims.filter(|claim| claim.kind == Kind::Test) {
            let key = (experiment.id.clone(), claim.id.clone());
            let line = last
                .get(&key)
                .unwrap_or_else(|| panic!("{key:?} was never asked"));
            if experiment.id == WITHOUT_A_UNIT {
                apart.count(line);
                continue;
            }
            all.count(line);
            let paper = claim.from.as_deref().unwrap().split('-').next().unwrap();
            by_paper
                .entry(paper.to_owned())
                .or_insert_with(Score::default)
                .count(line);
        }
    }
    (all, apart, by_paper)
}

/// That `document` says all of this; its lines are broken anywhere.
fn told(document: &str, wanted: &[String]) {
    let text = read(document);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for one in wanted {
        assert!(
            text.contains(one.as_str()),
            "{document} does not say: {one}"
        );
    }
}

#[test]
fn the_readme_tells_the_score_of_the_model() {
    let text = read("experiments/claims.txt");
    let first = text.lines().next().unwrap();
    let numbers = first
        .split(' ')
        .filter_map(|word| word.parse::<usize>().ok());
    let [hold, total, fail, undecided] = numbers.collect::<Vec<_>>()[..] else {
        panic!("{first}");
    };
    let modelled = Catalogue::built_in().unwrap().modelled();
    let claims = modelled.iter().flat_map(|experiment| &experiment.claims);
    let tests = claims.filter(|claim| claim.kind == Kind::Test).count();
    assert_eq!((tests, hold + fail + undecided), (total, total), "{first}");
    let sentence =
        format!("the model meets {hold} of them and misses {fail}; {undecided} are undecided");
    let begins = format!("{total} claims are about published numbers");
    told("README.md", &[begins, sentence]);
}

#[test]
fn documents_tell_the_score_of_the_runs_that_were_kept() {
    let (all, apart, by_paper) = scores();
    let Score {
        hold,
        fail,
        undecided,
        unmeasured,
    } = all;
    let (total, asked) = (all.total(), all.total() + apart.total());
    told(
        "README.md",
        &[
            format!("asks {asked} published claims of a kernel of today"),
            format!("{hold} hold, and {fail} do not. {undecided} were undecided"),
            format!("{unmeasured} could not be measured"),
            format!(
                "The other {}, about our stack, say nothing yet",
                apart.total()
            ),
        ],
    );
    let mut rows = vec![format!(
        "| all ({total}) | **{hold}** | **{fail}** | {undecided} | {unmeasured} |"
    )];
    for (paper, one) in &by_paper {
        let Score {
            hold,
            fail,
            undecided,
            unmeasured,
        } = one;
        let total = one.total();
        rows.push(format!(
            "| {paper} ({total}) | {hold} | {fail} | {undecided} | {unmeasured} |"
        ));
    }
    rows.push(format!("{} of {total} were decided", hold + fail));
    rows.push(format!(
        "{} that hold, {} that do not and {} undecided",
        apart.hold, apart.fail, apart.undecided
    ));
    told("docs/measurements.md", &rows);
    told(
        "experiments/claims-real.txt",
        &[format!(
            "{hold} of {total} hold, {fail} do not, {undecided} are undecided, {unmeasured} could not be measured"
        )],
    );
}
