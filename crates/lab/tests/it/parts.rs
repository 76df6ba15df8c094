//! A run that is divided over machines: its parts join to the bytes of an undivided
//! one, and parts that do not make up one run are refused.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_lab::{
    Cache, Catalogue, Document, Error, Experiment, Modelled, Options, Shard, csv, html, run,
};
use proptest::prelude::*;
use proptest::test_runner::Config;

/// Two small experiments: together 13 points.
fn experiments(rates: &str) -> Vec<Experiment> {
    let text = |id: &str, traffic: &str, values: &str| {
        format!(
            r#"
            id = "{id}"
            title = "A sink"
            profile = "sparcstation-20"
            explain = {{ setup = "-", model = "-", limits = "-" }}
            sweep = {{ parameter = "source.flood.traffic.rate_pps", label = "Offered", values = {values} }}
            scenario.duration_ms = 20
            scenario.source = [{{ name = "flood", to = "sink", traffic = {{ {traffic} }} }}]
            scenario.consumer = [{{ name = "sink", role = {{ kind = "sink" }} }}]
            measure = [{{ id = "goodput", of = "delivered_pps", label = "Goodput", unit = "packets/s" }}]
            [[curve]]
            id = "bsd"
            label = "4.4BSD"
            set.path = {{ kind = "batched-interrupts" }}
            [[curve]]
            id = "lrp"
            label = "SOFT-LRP"
            set.path = {{ kind = "soft-lrp" }}
            "#
        )
    };
    let random = text("random", r#"kind = "poisson", rate_pps = 1"#, rates);
    let even = text("even", r#"kind = "constant", rate_pps = 1"#, "[500]");
    let read = |file: &str, text: &str| Experiment::parse(file, text).unwrap();
    vec![read("random.toml", &random), read("even.toml", &even)]
}

fn all() -> Vec<Experiment> {
    experiments("[1000, 4000, 7000, 9000, 12000]")
}

/// Everything that a run writes which takes its results from `file`, if it has them.
fn written(experiments: &[Experiment], file: &Path, shard: Option<Shard>) -> String {
    let cache = Cache::open(file).unwrap();
    let options = Options {
        seed: 1,
        seeds: 3,
        shard,
        cache: Some(&cache),
        ..Options::default()
    };
    let runs = run(experiments, &Modelled, &options, &|_, _| ()).unwrap();
    let document = serde_json::to_string(&Document::new(&runs)).unwrap();
    let page = if shard.is_none() {
        html(&runs, "a").unwrap()
    } else {
        String::new()
    };
    format!("{document}{}{page}", csv(&runs))
}

/// Runs all parts, and names their files.
fn parts(experiments: &[Experiment], directory: &Path, of: usize) -> Vec<PathBuf> {
    let part = |index| {
        let file = directory.join(format!("part-{index}-of-{of}"));
        written(experiments, &file, Some(Shard { index, of }));
        file
    };
    (1..=of).map(part).collect()
}

proptest! {
    #![proptest_config(Config::with_cases(6))]

    #[test]
    fn parts_of_a_run_join_to_the_bytes_of_an_undivided_one(
        of in 1usize..8,
        order in any::<prop::sample::Index>(),
    ) {
        let experiments = all();
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        let whole = written(&experiments, &file("whole"), None);
        let mut parts = parts(&experiments, directory.path(), of);
        parts.rotate_left(order.index(of));
        let results = Cache::merge(&parts, &file("joined")).unwrap();
        let joined = fs::read(file("joined")).unwrap();
        // Nothing is missing, so that nothing is run again.
        prop_assert_eq!(written(&experiments, &file("joined"), None), whole);
        prop_assert_eq!(Cache::open(&file("joined")).unwrap().len(), results);
        prop_assert_eq!(&fs::read(file("joined")).unwrap(), &joined);
        // However it was divided, the joined file is the same.
        let undivided = self::parts(&experiments, directory.path(), 1);
        Cache::merge(&undivided, &file("again")).unwrap();
        prop_assert_eq!(fs::read(file("again")).unwrap(), joined);
    }
}

#[test]
fn parts_that_are_no_whole_run_are_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let good = parts(&all(), directory.path(), 3);
    let [first, second, third] = [&good[0], &good[1], &good[2]];
    let refused = |parts: &[&PathBuf], why: &str| {
        let parts: Vec<PathBuf> = parts.iter().map(|&part| part.clone()).collect();
        let error = Cache::merge(&parts, &file("joined")).unwrap_err();
        assert!(error.is_usage() && !file("joined").exists(), "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    refused(
        &[first, third],
        "part 2 of 3: it is missing; name the files",
    );
    refused(&[first, second, third, second], "part 2 of 3: it is in");

    fs::create_dir(file("others")).unwrap();
    let others = experiments("[1000, 4000, 7000, 9000, 12001]");
    let others = parts(&others, &file("others"), 3);
    refused(
        &[first, &others[1], third],
        "part 2 of 3: it is of another run",
    );
    let divided = parts(&all(), directory.path(), 2);
    refused(
        &[first, second, &divided[1]],
        "part 2 of 2: it is of another run",
    );
    let text = fs::read_to_string(second).unwrap();
    let other = fs::read_to_string(&others[1]).unwrap();
    fs::write(file("two"), text.clone() + other.as_str()).unwrap();
    refused(&[first, &file("two"), third], "several runs");

    // A part that was killed has results, but no end; run again, it goes on.
    let lines: Vec<&str> = text.lines().take(2).collect();
    fs::write(file("cut"), lines.join("\n")).unwrap();
    refused(&[first, &file("cut"), third], "no finished part");
    written(&all(), &file("cut"), Some(Shard { index: 2, of: 3 }));
    let whole = [first.clone(), file("cut"), third.clone()];
    Cache::merge(&whole, &file("joined")).unwrap();
}

/// Whoever mistypes `--shard` or a name loses nothing.
#[test]
fn a_finished_part_takes_no_other_part() {
    let directory = tempfile::tempdir().unwrap();
    let files = parts(&all(), directory.path(), 2);
    let before = fs::read(&files[1]).unwrap();
    let refused = |experiments: &[Experiment], seeds, shard: Shard| {
        let cache = Cache::open(&files[1]).unwrap();
        let options = Options {
            seed: 1,
            seeds,
            shard: Some(shard),
            cache: Some(&cache),
            ..Options::default()
        };
        let error = run(experiments, &Modelled, &options, &|_, _| ()).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert_eq!(fs::read(&files[1]).unwrap(), before, "{error}");
        error.to_string()
    };
    let (mine, other) = (Shard { index: 2, of: 2 }, Shard { index: 2, of: 3 });
    let error = refused(&all(), 3, other);
    assert!(error.contains("part 2 of 2: it is there, and not part 2 of 3"));
    assert!(refused(&all(), 2, mine).contains("of another command"));
    assert!(refused(&experiments("[1000]"), 3, mine).contains("of another command"));
    // The same once more is no fault.
    written(&all(), &files[1], Some(mine));
    Cache::merge(&files, &directory.path().join("all")).unwrap();
}

#[test]
fn what_is_no_file_of_results_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let good = parts(&all(), directory.path(), 2);
    let foreign = [
        "notes\n",
        "{}\n",
        "{\"key\":\"value\"}\n",
        "{\"run\": 1}",
        "\n",
        "\0\0",
        "\u{feff}notes",
    ];
    for text in foreign {
        fs::write(file("precious"), text).unwrap();
        let resumed = Cache::open(&file("precious")).unwrap_err();
        let merged = Cache::merge(&good, &file("precious")).unwrap_err();
        for error in [resumed, merged] {
            let said = error.to_string();
            assert!(
                error.is_usage() && said.contains("no file of results"),
                "{said}"
            );
        }
        assert_eq!(fs::read_to_string(file("precious")).unwrap(), text);
    }
    for (index, part) in good.iter().enumerate() {
        let before = fs::read(part).unwrap();
        let error = Cache::merge(&good, part).unwrap_err();
        let said = error.to_string();
        assert!(
            error.is_usage() && said.contains("one of the parts"),
            "{said}"
        );
        assert_eq!(fs::read(part).unwrap(), before, "part {index}");
    }
    let error = Cache::merge(&good, directory.path()).unwrap_err();
    assert!(error.is_usage(), "{error}");
}

/// Wherever the end of a file was cut off, by a kill or a full disk.
#[test]
fn a_damaged_file_of_results_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let good = parts(&all(), directory.path(), 2);
    let text = fs::read_to_string(&good[1]).unwrap();
    let end: usize = text.lines().take(2).map(|line| line.len() + 1).sum();
    let first = (0..80).map(|cut| (cut, 0));
    for (cut, whole) in first.chain([(end - 2, 1), (end - 1, 2), (end, 2), (end + 1, 2)]) {
        fs::write(file("cut"), &text[..cut]).unwrap();
        let cache = Cache::open(&file("cut")).unwrap();
        assert_eq!(cache.len(), whole, "{cut}");
    }
    // An earlier run began its line behind what was cut off.
    fs::write(file("cut"), format!("{}\n{text}", &text[..20])).unwrap();
    let whole = [good[0].clone(), file("cut")];
    Cache::merge(&whole, &file("joined")).unwrap();
    // What is joined may be joined again, also through a link.
    std::os::unix::fs::symlink(file("joined"), file("link")).unwrap();
    fs::write(file("joined"), "").unwrap();
    Cache::merge(&whole, &file("link")).unwrap();
    Cache::merge(&good, &file("link")).unwrap();
    assert!(file("link").is_symlink());
    assert_eq!(
        Cache::open(&file("joined")).unwrap().len(),
        Cache::open(&file("link")).unwrap().len()
    );
    let left = fs::read_dir(directory.path()).unwrap();
    assert_eq!(left.count(), 5, "nothing is left beside");
}

#[test]
fn real_packets_are_not_divided() {
    let real = Catalogue::built_in().unwrap();
    let real = real.select(&["real-mh-fig4".to_owned()]).unwrap();
    let options = Options {
        seed: 1,
        seeds: 1,
        shard: Some(Shard { index: 1, of: 2 }),
        ..Options::default()
    };
    let error = run(&real, &Modelled, &options, &|_, _| ()).unwrap_err();
    assert!(matches!(&error, Error::File { .. }), "{error}");
    assert!(error.to_string().contains("without --shard"), "{error}");
}
