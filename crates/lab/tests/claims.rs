//! All experiments, run in full: their claims are those of the reviewed table, and
//! the same seed gives the same bytes whatever runs beside it.

use std::fs;
use std::path::Path;

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

/// Runs on the modelled host until `left` points have been run.
struct Interrupted {
    left: std::sync::atomic::AtomicIsize,
}

impl Host for Interrupted {
    fn name(&self) -> &'static str {
        Modelled.name()
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        if self.left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            return Modelled.run(point);
        }
        Err(Error::Io {
            file: "power".into(),
            source: std::io::Error::other("failed"),
        })
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
        let host = Interrupted { left };
        run(&experiments, &host, &options, &|_, _| ())
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
    assert_eq!(document(&resumed), document(&run_all(&experiments, 1)));
}

/// Counts its points.
#[derive(Default)]
struct Counted(std::sync::atomic::AtomicUsize);

impl Host for Counted {
    fn name(&self) -> &'static str {
        Modelled.name()
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
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
    let page = html(&runs, "plimsoll 1.2 (commit 3a4b)").unwrap();
    assert!(
        page.contains("plimsoll 1.2 (commit 3a4b): plimsoll lab report lrp-fig3 mr-fig2"),
        "made by"
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
    for column in ["soft", "threads", "ip-queue", "socket-queue"] {
        assert!(page.contains(&format!(" {column}")), "{column}");
    }
}

/// Gives each real curve a straight line.
struct Line;

impl Host for Line {
    fn name(&self) -> &'static str {
        "testbed"
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        let measures = point.experiment.measures.iter();
        Ok(measures.map(|one| (one.of.clone(), point.x)).collect())
    }
}

/// A report on both has the modelled curves in the plot of the real ones.
#[test]
fn real_and_modelled_curves_are_in_one_plot() {
    let ids = ["real-mr-fig5", "mr-fig5"].map(str::to_owned);
    let both = Catalogue::built_in().unwrap().select(&ids).unwrap();
    let page = |experiments: &[Experiment]| {
        let options = Options {
            seed: 1,
            testbed: Some(&Line),
            ..Options::default()
        };
        let runs = run(experiments, &Modelled, &options, &|_, _| ()).unwrap();
        html(&runs, "a").unwrap()
    };
    assert_eq!(page(&both).matches(", modelled<").count(), 2);
    let real: Vec<Experiment> = both
        .into_iter()
        .filter(|one| one.id == "real-mr-fig5")
        .collect();
    assert!(!page(&real).contains(", modelled<"));
}
