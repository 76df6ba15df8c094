//! `plimsoll lab` and the demo without real packets, as a user runs them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::shell::run;

fn plimsoll(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn an_experiment_is_explained_run_and_written() {
    assert!(text(&plimsoll(&["lab", "list"])).contains("lrp-fig3"));
    let explained = text(&plimsoll(&["lab", "explain", "lrp-fig3"]));
    for part in ["What was done", "Limits", "Calibrated on", "LRP-E03"] {
        assert!(explained.contains(part), "{explained}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.html");
    let html = path.to_str().unwrap();
    let output = plimsoll(&[
        "lab", "run", "mr-fig7", "--seeds", "3", "--json", "-", "--html", html,
    ]);
    assert!(output.status.success(), "{output:?}");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let experiment = &document["experiments"][0];
    assert_eq!(experiment["id"], "mr-fig7");
    for key in ["profile", "seed", "curves"] {
        assert!(!experiment[key].is_null(), "{key}");
    }
    for claim in experiment["claims"].as_array().unwrap() {
        assert!(claim["measured"].is_number(), "{claim}");
        assert!(
            claim["interval"]
                .as_array()
                .is_some_and(|ends| ends.len() == 2),
            "{claim}"
        );
        assert!(
            claim["holds"].is_boolean() || claim["holds"].is_null(),
            "{claim}"
        );
        // Some were used to fit the profile: those are not part of the score.
        let kind = claim["kind"].as_str().unwrap();
        assert!(["test", "calibrated"].contains(&kind), "{claim}");
        assert_eq!(claim["host"], "model");
        let entry = claim["entry"].as_str().unwrap();
        assert!(entry.split(", ").any(|one| one == "MR-E16"), "{claim}");
    }
    assert_eq!(document["score"]["by_paper"].as_object().unwrap().len(), 1);
    assert!(fs::read_to_string(path).unwrap().contains("<svg"));
}

#[test]
fn any_parameter_is_swept() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("a page.html");
    let output = plimsoll(&[
        "lab",
        "sweep",
        "mr-fig7",
        "--curve",
        "quota5",
        "--parameter",
        "path.quota",
        "--values",
        "2,8,20",
        "--set",
        "source.flood.traffic.rate_pps=14000",
        "--figure",
        "cpu.busy_pct",
        "--html",
        page.to_str().unwrap(),
    ]);
    let made_by = format!(
        ": plimsoll lab sweep mr-fig7 --curve quota5 --parameter path.quota --values 2,8,20 \
         --set source.flood.traffic.rate_pps=14000 --figure cpu.busy_pct --html '{}'.",
        page.display()
    );
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains(&made_by), "{made_by}");
    let csv = text(&output);
    assert_eq!(csv.lines().count(), 1 + 3 * 2, "{csv}");
    assert!(
        csv.contains("mr-fig7,quota5,modelled,path.quota,8,forwarded,"),
        "{csv}"
    );
    assert!(csv.contains(",8,cpu_busy_pct,"), "{csv}");
}

#[test]
fn parts_of_a_run_are_joined() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (first, second, all) = (file("1"), file("2"), file("all"));
    let run = [
        "lab", "run", "mr-fig1", "--seeds", "2", "--json", "-", "--resume",
    ];
    for (shard, part) in [("1/2", &first), ("2/2", &second)] {
        let output = plimsoll(&[&run[..], &[part, "--shard", shard]].concat());
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output).contains(&format!("part {} of 2", &shard[..1])));
    }
    let output = plimsoll(&["lab", "merge", &first, &second, "-o", &all]);
    assert!(text(&output).starts_with("12 results"), "{output:?}");
    let joined = plimsoll(&[&run[..], &[&all]].concat());
    let whole = plimsoll(&[&run[..], &[&file("whole")]].concat());
    assert!(joined.status.success() && joined.stdout == whole.stdout);
}

/// `plimsoll lab … | head` used to panic.
#[test]
fn a_reader_that_has_enough_is_no_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["lab", "run", "mr-fig7", "--quick", "--values"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}

#[test]
fn what_does_not_exist_is_used_wrongly() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().to_str().unwrap();
    for arguments in [
        &["lab", "run", "nonsense"][..],
        &["lab", "trace", "mr-fig7", "--curve", "nonsense"],
        &["lab", "run", "mr-fig7", "--shard", "3/2", "--resume", "x"],
        &["lab", "run", "mr-fig7", "--shard", "1/2"],
        &["lab", "run", "mr-fig7", "--rounds", "0"],
        &["lab", "run", "all", "--experiments", empty],
        &["lab", "run", "real", "--experiments", empty],
        &["lab", "report", "--experiments", empty],
        &["lab", "list", "--experiments", empty],
        &["lab", "run", "mr-fig7", "--quick", "--rounds", "8"],
        &[
            "lab",
            "sweep",
            "mr-fig7",
            "--parameter",
            "path.quota",
            "--values",
            "1",
            "--set",
            "x",
        ],
        &[
            "lab",
            "sweep",
            "mr-fig7",
            "--parameter",
            "path.quota",
            "--values",
            "2",
            "--curve",
            "quota5",
            "--figure",
            "cpu.nonsense",
        ],
    ] {
        let output = plimsoll(arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_sweep_without_steps_says_what_is_wrong() {
    let sweep = ["lab", "sweep", "mr-fig7", "--curve", "quota5"];
    let range = ["--parameter", "path.quota", "--from", "2", "--to", "8"];
    let steps = |steps| plimsoll(&[&sweep[..], &range, &["--steps", steps]].concat());
    let output = steps("0");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("--steps") && error.contains("1.."),
        "{error}"
    );
    // One step is the first value.
    assert!(text(&steps("1")).contains(",path.quota,2,"));
}

/// Title and bars of each; where no packets are sent to the UDP server it takes none.
const MODELLED_CHARTS: [(&str, usize); 2] = [
    ("modelled: Goodput of the flooded server, packets/s", 6),
    ("modelled: Requests answered, 1/s", 8),
];

#[test]
fn the_demo_without_real_packets_says_so() {
    let output = plimsoll(&["demo", "--modelled"]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("modelled host"));
    let shown = text(&output);
    assert!(
        shown.contains("not measurements of this machine"),
        "{shown}"
    );
    assert!(
        shown.contains("demo-udp") && shown.contains("demo-syn"),
        "{shown}"
    );
    for (chart, rows) in MODELLED_CHARTS {
        let (_, chart) = shown.split_once(chart).unwrap_or_else(|| panic!("{shown}"));
        let bars: Vec<&str> = chart.lines().skip(1).take(rows).collect();
        let is_bar = |(row, bar): (usize, &&str)| {
            let name = ["stock", "guard"][row % 2];
            bar.contains(name) && (name == "stock" || bar.contains('█'))
        };
        assert!(bars.iter().enumerate().all(is_bar), "{shown}");
        assert_eq!(chart.lines().nth(rows + 1), Some(""), "{shown}");
    }
}

/// As a user without rights runs it, from where such a user may read it.
fn plimsoll_without_root(arguments: &[&str]) -> Output {
    const NOBODY: u32 = 65_534;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("plimsoll");
    // Not by this process: while a child that another test forks has the file open to write,
    // too, it cannot be started.
    run(&format!(
        "cp {} {}",
        env!("CARGO_BIN_EXE_plimsoll"),
        program.display()
    ));
    let mut command = Command::new(&program);
    command.args(arguments).current_dir("/");
    if nix::unistd::geteuid().is_root() {
        // Dropping the group list comes with changing the user as root.
        command.gid(NOBODY).uid(NOBODY);
    }
    command.output().unwrap()
}

#[test]
fn the_demo_without_root_models_by_itself_and_says_why() {
    let output = plimsoll_without_root(&["demo"]);
    assert!(output.status.success(), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("No real packets (") && error.contains("modelled host"),
        "{error}"
    );
    assert!(
        text(&output).contains("not measurements of this machine"),
        "{output:?}"
    );
}

#[test]
fn options_for_real_packets_are_refused_on_a_modelled_host() {
    for option in [
        "--only=udp",
        "--runs=1",
        "--floods=1",
        "--syns=0",
        "--crossing=1",
        "--holdoff-us=50",
        "--guard=--observe",
    ] {
        let output = plimsoll(&["demo", "--modelled", option]);
        assert_eq!(output.status.code(), Some(2), "{option}: {output:?}");
    }
    let output = plimsoll_without_root(&["demo", "--floods", "1,5"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("--floods") && error.contains("real packets only"),
        "{error}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_testbed_that_cannot_be_is_reported_as_not_measured() {
    let output =
        plimsoll_without_root(&["lab", "run", "demo-udp", "--quick", "--testbed", "--values"]);
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output);
    for path in ["stock", "threaded polling", "guard"] {
        let told = format!("{path} (real packets) was not measured: ");
        assert!(shown.contains(&told), "{shown}");
    }
}

#[test]
fn real_packets_without_root_are_refused_and_not_passed_over() {
    for ids in [&["real"][..], &["mr-fig1", "real-mr-fig5"]] {
        let output = plimsoll_without_root(&[&["lab", "run", "--quick"], ids].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("root"), "{error}");
    }
    // What is modelled asks for nothing.
    assert!(text(&plimsoll(&["lab", "list"])).contains("real-mr-fig5"));
}
