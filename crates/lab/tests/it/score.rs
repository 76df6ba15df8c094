//! The scores that documents tell are those of the runs that were kept.
//!
//! README told 145 claims when the files had 163: runs were added to
//! `experiments/claims-real.txt`, and nobody counted again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use plimsoll_lab::{Catalogue, Kind};

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
            "was not measured",
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

/// Of the test claims that were kept, all and by paper. Each that there is was asked.
fn scores() -> (Score, BTreeMap<String, Score>) {
    let text = read("experiments/claims-real.txt");
    let (mut lines, mut experiment) = (BTreeMap::new(), "");
    for line in text.lines() {
        match line.strip_prefix("  ") {
            None => experiment = line.split("  ").next().unwrap(),
            Some(claim) => {
                let id = claim.split(' ').nth(2).unwrap_or_default();
                lines.insert((experiment, id.trim_end_matches(':')), claim);
            }
        }
    }
    let (mut all, mut by_paper) = (Score::default(), BTreeMap::new());
    let experiments = Catalogue::built_in().unwrap();
    for experiment in experiments.select(&["real".to_owned()]).unwrap() {
        let claims = experiment.claims.iter();
        for claim in claims.filter(|claim| claim.kind == Kind::Test) {
            let key = (experiment.id.as_str(), claim.id.as_str());
            let line = lines.get(&key);
            let line = line.unwrap_or_else(|| panic!("{key:?} was never asked"));
            all.count(line);
            let paper = claim.from.as_deref().unwrap().split('-').next().unwrap();
            let of_paper = by_paper.entry(paper.to_owned());
            of_paper.or_insert_with(Score::default).count(line);
        }
    }
    (all, by_paper)
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
    let all = format!("| all ({total}) | **{hold}** | **{fail}** | {undecided} |");
    let (rows, of_papers): (Vec<_>, Vec<_>) = text.lines().skip(1).map_while(row).unzip();
    assert_eq!(of_papers.iter().sum::<usize>(), total);
    told("docs/measurements.md", &[rows, vec![all]].concat());
}

/// The row of measurements for one paper, and its number of claims, from a line as
/// `  LRP  21 of 34 hold, 13 do not`.
fn row(line: &str) -> Option<(String, usize)> {
    let (paper, counts) = line.strip_prefix("  ")?.split_once("  ")?;
    let numbers = counts.split(' ').filter_map(|word| word.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    let (hold, total, fail) = (*numbers.first()?, *numbers.get(1)?, *numbers.get(2)?);
    let undecided = numbers.get(3).copied().unwrap_or(0);
    Some((
        format!("| {paper} ({total}) | {hold} | {fail} | {undecided} |"),
        total,
    ))
}

#[test]
fn documents_tell_the_score_of_the_runs_that_were_kept() {
    let (all, by_paper) = scores();
    let Score {
        hold,
        fail,
        undecided,
        unmeasured,
    } = all;
    let total = all.total();
    told(
        "README.md",
        &[
            format!("asks {total} published claims of a kernel of today"),
            format!("{hold} hold, and {fail} do not. {undecided} were undecided"),
            format!("{unmeasured} could not be measured"),
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
    told("docs/measurements.md", &rows);
    told(
        "experiments/claims-real.txt",
        &[format!(
            "{hold} of {total} hold, {fail} do not, {undecided} are undecided, {unmeasured} could not be measured"
        )],
    );
}
