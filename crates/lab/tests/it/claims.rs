//! All experiments, run in full: their claims are those of the reviewed table, and
//! the same seed gives the same bytes whatever runs beside it.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use plimsoll_lab::{
    Cache, Catalogue, Document, Error, Experiment, Figures, Host, Modelled, Options, Point, Run,
    csv, html, run, table,
};

fn run_all(experiments: &[Experiment], seed: u64) -> Vec<Run> {
    let options = Options {
        seed,
        ..Options::default()
    };
    run(experiments, &Modelled, &options, &|_, _| ()).unwrap()
}

/// One seed each: all seeds take minutes.
fn snapshot() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/claims-quick.txt")
}

/// Set to write the table instead of comparing with it: `make lab-snapshot`.
const RENEW: &str = "PLIMSOLL_RENEW_CLAIMS";

#[test]
fn all_claims_are_those_of_the_reviewed_table() {
    let catalogue = Catalogue::built_in().unwrap();
    let measured = table(&run_all(&catalogue.modelled(), 1));
    let path = snapshot();
    if std::env::var_os(RENEW).is_some() {
        fs::write(&path, &measured).unwrap();
    }
    let reviewed = fs::read_to_string(&path).unwrap();
    for (reviewed, measured) in reviewed.lines().zip(measured.lines()) {
        assert_eq!(
            reviewed, measured,
            "review the change, then `make lab-snapshot`"
        );
    }
    assert_eq!(reviewed.lines().count(), measured.lines().count());
}

/// Some experiments of each kind, small enough to run several times.
fn some() -> Vec<Experiment> {
    let ids = ["mr-fig2", "lrp-fig3", "st-table8"].map(str::to_owned);
    Catalogue::built_in().unwrap().select(&ids).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_cores() {
    let experiments = some();
    let bytes = |seed| {
        let runs = run_all(&experiments, seed);
        let document = serde_json::to_string(&Document::new(&runs)).unwrap();
        format!("{document}{}", csv(&runs))
    };
    let on_threads = |threads, seed| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap().install(|| bytes(seed))
    };
    let reference = on_threads(1, 7);
    assert!(
        reference == on_threads(5, 7),
        "the schedule shows in the result"
    );
    assert!(reference != on_threads(1, 8), "the seed must matter");
}

/// Figures out of nothing but what a result depends on, until `left` points have been run.
struct Interrupted {
    left: AtomicIsize,
}

impl Host for Interrupted {
    fn name(&self) -> &'static str {
        Modelled.name()
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(power_failure());
        }
        let mut hasher = DefaultHasher::new();
        (point.settings.to_string(), point.seed).hash(&mut hasher);
        // With digits to the last: they must come back from the file.
        let drawn = hasher.finish() as f64 / 3.0;
        let measures = point.experiment.measures.iter();
        Ok(measures.map(|one| (one.of.clone(), drawn)).collect())
    }
}

fn power_failure() -> Error {
    Error::Io {
        file: "power".into(),
        source: std::io::Error::other("failed"),
    }
}

#[test]
fn an_interrupted_run_goes_on_where_it_was() {
    let experiments = some();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results");
    let interrupted = |left: isize| {
        let cache = Cache::open(&path).unwrap();
        let options = Options {
            seed: 1,
            cache: Some(&cache),
            ..Options::default()
        };
        let left = left.into();
        run(&experiments, &Interrupted { left }, &options, &|_, _| ())
    };
    assert!(interrupted(30).is_err());
    assert_eq!(Cache::open(&path).unwrap().len(), 30);
    // A line that was being written when the power failed.
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 20]).unwrap();
    assert_eq!(Cache::open(&path).unwrap().len(), 29);

    let points: usize = experiments
        .iter()
        .map(|one| one.curves.len() * one.sweep.values.len())
        .sum();
    let missing = isize::try_from(points).unwrap() - 29;
    assert!(interrupted(missing - 1).is_err());
    let resumed = interrupted(1).unwrap();
    let document = |runs: &[Run]| serde_json::to_string(&Document::new(runs)).unwrap();
    let options = Options {
        seed: 1,
        ..Options::default()
    };
    let left = isize::MAX.into();
    let whole = run(&experiments, &Interrupted { left }, &options, &|_, _| ());
    assert_eq!(document(&resumed), document(&whole.unwrap()));
}

/// One process of a run on real packets: it finds a unit of its own, on a machine, and ends
/// when `left` points have been run.
struct Process {
    unit: f64,
    machine: &'static str,
    left: AtomicIsize,
}

impl Host for Process {
    fn name(&self) -> &'static str {
        "testbed"
    }

    fn machine(&self) -> String {
        self.machine.to_owned()
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(power_failure());
        }
        let measures = point.experiment.measures.iter();
        Ok(measures.map(|one| (one.of.clone(), self.unit)).collect())
    }
}

/// A resumed round kept the curves that were there and measured the others, in multiples of
/// another unit, also on another machine.
#[test]
fn a_round_of_real_packets_is_of_one_process_and_one_machine() {
    let experiments = Catalogue::built_in().unwrap();
    let experiments = experiments.select(&["real-mr-fig5".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results");
    let units = |unit, machine, left: isize| {
        let cache = Cache::open(&path).unwrap();
        let left = left.into();
        let process = Process {
            unit,
            machine,
            left,
        };
        let options = Options {
            seeds: 2,
            testbed: Some(&process),
            cache: Some(&cache),
            ..Options::default()
        };
        let runs = run(&experiments, &Modelled, &options, &|_, _| ()).ok()?;
        let of = &experiments[0].measures[0].of;
        let curves = runs[0].curves.iter();
        let rounds = curves.flat_map(|curve| curve.points.iter().zip(&curve.others));
        let rounds = rounds.map(|((_, first), others)| (first[of] as u32, others[0][of] as u32));
        Some(rounds.collect::<BTreeSet<_>>())
    };
    let curve = experiments[0].sweep.values.len();
    let round = experiments[0].curves.len() * curve;
    // Its power fails after one curve of the second round.
    assert_eq!(units(1.0, "one", (round + curve) as isize), None);
    let expected = Some(BTreeSet::from([(1, 2)]));
    assert_eq!(units(2.0, "one", round as isize), expected);
    assert_eq!(units(3.0, "one", 0), expected, "nothing is left to be run");
    let other = units(4.0, "other", 2 * round as isize);
    assert_eq!(other, Some(BTreeSet::from([(4, 4)])));
}

/// Counts its points.
#[derive(Default)]
struct Counted(AtomicUsize);

impl Host for Counted {
    fn name(&self) -> &'static str {
        Modelled.name()
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Modelled.run(point)
    }
}

#[test]
fn for_verdicts_alone_only_curves_run_that_a_claim_names() {
    let experiments = Catalogue::built_in().unwrap();
    let experiments = experiments.select(&["st-table4".to_owned()]).unwrap();
    let asked = |claims_alone| {
        let host = Counted::default();
        let options = Options {
            seed: 1,
            claims_alone,
            ..Options::default()
        };
        let runs = run(&experiments, &host, &options, &|_, _| ()).unwrap();
        (table(&runs), host.0.into_inner())
    };
    let ((all, points), (alone, fewer)) = (asked(false), asked(true));
    assert_eq!(all, alone);
    // Nothing is claimed of the kernel build.
    assert_eq!((points, fewer), (8, 7));
}

/// Each paper has a section with its score, and each curve of a host its breakdown.
#[test]
fn the_report_has_a_page_per_paper_and_where_time_and_packets_went() {
    let runs = run_all(&some(), 1);
    let page = html(&runs, "plimsoll 1.2 (commit 3a4b): plimsoll lab x --set y").unwrap();
    assert!(
        page.contains("plimsoll 1.2 (commit 3a4b): plimsoll lab x --set y"),
        "made by"
    );
    assert!(
        page.contains("Curves are what the modelled host measured, ")
            && !page.contains("Real packets"),
        "measured by"
    );
    for (paper, id) in [("MR", "mr-fig2"), ("LRP", "lrp-fig3"), ("ST", "st-table8")] {
        let begin = page
            .find(&format!("<section id=\"paper-{paper}\""))
            .unwrap();
        let section = &page[begin..begin + page[begin..].find("</section>").unwrap()];
        assert!(section.contains("Test claims: "), "{section}");
        assert!(section.contains(&format!("href=\"#{id}\"")), "{section}");
    }
    // Timers run on no host: they have neither CPU accounts nor queues.
    assert_eq!(page.matches("class=\"breakdown\"").count(), 2);
    for column in ["soft", "threads", "ip-queue/s", "socket-queue/s"] {
        assert!(page.contains(&format!(" {column}")), "{column}");
    }
    let real = on_line(&[Catalogue::built_in()
        .unwrap()
        .get("real-mr-fig5")
        .unwrap()
        .clone()]);
    assert!(real.contains("Curves are what the machine named below measured with real packets, "));
    assert!(real.contains("Real packets: Linux ") && real.contains("The page is of 20"));
    let (_, table) = real.split_once("<div class=\"scroll\"><pre>").unwrap();
    let (table, _) = table.split_once("</pre>").unwrap();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = table.lines().map(words).collect();
    assert_eq!(lines[0], "network processes idle socket-queue %");
    assert!(
        lines[1..]
            .iter()
            .all(|line| line.ends_with(" 90.0 4.0 6.0 25.0")),
        "{table}"
    );
}

/// Gives each real curve a straight line, and where time and packets went as floods tell it.
struct Line;

impl Host for Line {
    fn name(&self) -> &'static str {
        "testbed"
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        let measures = point.experiment.measures.iter();
        let line = measures.map(|one| (one.of.clone(), point.x));
        let parts = [
            ("cpu.network_pct", 90.0),
            ("cpu.app_pct", 4.0),
            ("cpu.idle_pct", 6.0),
            ("loss.interface_part_pct", 0.0),
            ("loss.socket-queue_part_pct", 25.0),
        ];
        let parts = parts.map(|(name, value)| (name.to_owned(), value));
        Ok(line.chain(parts).collect())
    }
}

fn on_line(experiments: &[Experiment]) -> String {
    let options = Options {
        seed: 1,
        testbed: Some(&Line),
        ..Options::default()
    };
    let runs = run(experiments, &Modelled, &options, &|_, _| ()).unwrap();
    html(&runs, "a").unwrap()
}

/// Its figure is the round.
struct Rounds;

impl Host for Rounds {
    fn name(&self) -> &'static str {
        "testbed"
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        Ok(Figures::from([("y".to_owned(), point.seed as f64)]))
    }
}

#[test]
fn more_than_four_rounds_are_run_and_judged_if_asked_for() {
    let text = r#"
        id = "made-up"
        title = "One curve"
        host = "real"
        measure = [{ id = "y", of = "y", label = "Y", unit = "" }]
        explain = { setup = "-", model = "-", limits = "-" }
        sweep = { parameter = "multiple", label = "offered", values = [1] }
        curve = [{ id = "one", label = "One" }]
        claim = [{ id = "c", kind = "ours", text = "t", measure = "peak(one.y)", at_least = 1 }]
    "#;
    let experiments = [Experiment::parse("made-up.toml", text).unwrap()];
    let mean_of = |seeds, rounds| {
        let options = Options {
            seed: 1,
            seeds,
            rounds,
            testbed: Some(&Rounds),
            ..Options::default()
        };
        let runs = run(&experiments, &Modelled, &options, &|_, _| ()).unwrap();
        (runs[0].seeds, runs[0].verdicts[0].measured)
    };
    assert_eq!(mean_of(20, 0), (4, Some(2.5)));
    assert_eq!(mean_of(2, 0), (2, Some(1.5)));
    assert_eq!(mean_of(2, 6), (6, Some(3.5)));
}

/// A report on both has the modelled curves in the plot of the real ones.
#[test]
fn real_and_modelled_curves_are_in_one_plot() {
    let ids = ["real-mr-fig5", "mr-fig5"].map(str::to_owned);
    let both = Catalogue::built_in().unwrap().select(&ids).unwrap();
    assert_eq!(on_line(&both).matches(", modelled<").count(), 2);
    let real: Vec<Experiment> = both
        .into_iter()
        .filter(|one| one.id == "real-mr-fig5")
        .collect();
    assert!(!on_line(&real).contains(", modelled<"));
}
