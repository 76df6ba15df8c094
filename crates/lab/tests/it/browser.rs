//! The report in a real browser: nothing fails on its console, every plot is
//! there, and it fits a desktop, a dark desktop and a phone. It is one file that
//! loads nothing else and is small. Screenshots stay under `target/lab-report/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_lab::{Catalogue, Error, Figures, Host, HostKind, Options, Point, html, run};

/// Gives every experiment curves at once: this test is about the page.
struct Smooth;

impl Host for Smooth {
    fn name(&self) -> &'static str {
        "modelled"
    }

    fn run(&self, point: &Point<'_>) -> Result<Figures, Error> {
        let length = (point.curve.id.len() as u64 + point.seed % 2) as f64;
        let value = point.x / (1.0 + point.x / 1e4) + length;
        let told = match point.experiment.host {
            HostKind::Real => &REAL[..],
            HostKind::Modelled | HostKind::Testbed => &MODELLED,
        };
        let told = told.iter().map(|name| ((*name).to_owned(), 9.0 + length));
        let measures = point.experiment.measures.iter();
        let measures = measures.map(|measure| (measure.of.clone(), value));
        Ok(told.chain(measures).collect())
    }
}

/// Where time and packets went, for the tables below the claims: not fewer columns than hosts have
/// that is not 0.
const MODELLED: [&str; 9] = [
    "cpu.interrupt_pct",
    "cpu.soft_interrupt_pct",
    "cpu.timer_pct",
    "cpu.clock_pct",
    "cpu.switch_pct",
    "cpu.idle_pct",
    "loss.interface_pps",
    "loss.early-discard_pps",
    "loss.socket-queue_pps",
];
const REAL: [&str; 6] = [
    "cpu.network_pct",
    "cpu.app_pct",
    "cpu.idle_pct",
    "loss.interface_part_pct",
    "loss.early-discard_part_pct",
    "loss.socket-queue_part_pct",
];

/// So that it opens fast.
const BYTES_MAX: usize = 3_000_000;
/// What would load something from elsewhere.
const LOADS: [&str; 5] = ["src=\"http", "<link", "@import", "url(http", "fetch("];
/// Two, so that there are intervals to draw.
const SEEDS: u32 = 2;

#[test]
fn the_report_opens_in_a_browser_with_all_its_plots() {
    let catalogue = Catalogue::built_in().unwrap();
    let options = Options {
        seeds: SEEDS,
        testbed: Some(&Smooth),
        ..Options::default()
    };
    let runs = run(catalogue.all(), &Smooth, &options, &|_, _| ()).unwrap();
    let page = html(&runs, "a").unwrap();
    assert!(page.len() < BYTES_MAX, "{} bytes", page.len());
    let loaded = LOADS.iter().find(|how| page.contains(**how));
    assert_eq!(loaded, None, "the report loads something");
    let experiments = catalogue.all().iter();
    let plotted = experiments.filter(|experiment| experiment.sweep.is_a_range());
    let plots: usize = plotted.map(|experiment| experiment.measures.len()).sum();
    assert!(plots > 0, "nothing to look at");

    let directory = directory();
    for (name, width, flags) in [
        ("desktop", 1200, [].as_slice()),
        ("dark", 1200, &["--blink-settings=preferredColorScheme=0"]),
        ("phone", 390, &[]),
    ] {
        let seen = Seen::by_chromium(&directory, name, &page, width, flags);
        assert_eq!(seen.console, "", "{name}: the console must be silent");
        assert_eq!(
            seen.number("plots"),
            plots as f64,
            "{name}: plots that are visible"
        );
        assert!(
            seen.number("overflow") <= 0.0,
            "{name}: wider than the window"
        );
        assert_eq!(
            seen.dark(),
            name == "dark",
            "{name}: light or dark as asked for"
        );
        let image = fs::read(directory.join(format!("{name}.png"))).unwrap();
        assert!(image.starts_with(b"\x89PNG") && image.len() > 20_000);
    }
}

fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../lab-report");
    fs::create_dir_all(&directory).unwrap();
    directory.canonicalize().unwrap()
}

/// What the page says about itself once it is laid out.
const PROBE: &str = r#"<script>
addEventListener("load", () => {
  const visible = [...document.querySelectorAll("figure > svg")].filter((svg) => {
    const box = svg.getBoundingClientRect();
    return box.width > 200 && box.height > 100 && svg.querySelector("[stroke-linecap], circle");
  });
  const root = document.documentElement;
  root.dataset.plots = visible.length;
  root.dataset.overflow = root.scrollWidth - root.clientWidth;
  root.dataset.back = getComputedStyle(document.body).backgroundColor;
});
</script>"#;

struct Seen {
    dom: String,
    console: String,
}

impl Seen {
    /// Opens the page with a probe in it, then takes a screenshot of the page.
    fn by_chromium(directory: &Path, name: &str, page: &str, width: u32, flags: &[&str]) -> Self {
        let plain = directory.join("report.html");
        let probed = directory.join("probed.html");
        fs::write(&plain, page).unwrap();
        fs::write(&probed, page.replace("</body>", &format!("{PROBE}</body>"))).unwrap();
        let profile = tempfile::tempdir().unwrap();
        let chromium = |last: &[String]| {
            let output = Command::new("chromium")
                .args([
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--hide-scrollbars",
                ])
                .args(["--enable-logging=stderr", "--disable-dev-shm-usage"])
                .arg(format!("--user-data-dir={}", profile.path().display()))
                .arg(format!("--window-size={width},3000"))
                .args(flags)
                .args(last)
                .output()
                .expect("chromium is needed: scripts/setup installs it");
            assert!(output.status.success(), "{output:?}");
            output
        };
        let shot = format!("--screenshot={}/{name}.png", directory.display());
        chromium(&[shot, format!("file://{}", plain.display())]);
        let output = chromium(&[
            "--dump-dom".to_owned(),
            format!("file://{}", probed.display()),
        ]);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let console = log.lines().filter(|line| line.contains("CONSOLE"));
        Self {
            dom: String::from_utf8_lossy(&output.stdout).into_owned(),
            console: console.collect(),
        }
    }

    fn attribute(&self, name: &str) -> &str {
        let start = format!("data-{name}=\"");
        let (_, rest) = self.dom.split_once(&start).expect("the probe ran");
        rest.split('"').next().unwrap_or_default()
    }

    fn number(&self, name: &str) -> f64 {
        self.attribute(name).parse().unwrap()
    }

    fn dark(&self) -> bool {
        let colour = self.attribute("back").trim_start_matches("rgb(");
        let red: f64 = colour
            .split(',')
            .next()
            .unwrap_or_default()
            .parse()
            .unwrap();
        red < 128.0
    }
}
