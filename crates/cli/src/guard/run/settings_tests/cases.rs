//! A case for each option that a file may set.

use std::time::Duration;

use plimsoll_core::config::Fraction;
use plimsoll_guard::governor::Strategy;
use plimsoll_guard::session::{Settings, Shares};

/// What a setting does when it is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnReload {
    TakesEffect,
    TakesANewStart,
}
use OnReload::{TakesANewStart, TakesEffect};

/// One setting.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// A value that is not the default, with what else it needs in the file.
    pub(super) value: &'static str,
    pub(super) besides: &'static str,
    /// True of the settings that value makes, and not of the defaults.
    pub(super) is_effective: fn(&Settings) -> bool,
    pub(super) on_reload: OnReload,
    /// Of a type that is none of its.
    pub(super) wrong_type: &'static str,
    /// Values of its type that are refused, and what is said.
    pub(super) refused: &'static [(&'static str, &'static str)],
}

/// A setting by itself that takes effect at once.
const fn case(
    name: &'static str,
    value: &'static str,
    is_effective: fn(&Settings) -> bool,
    wrong_type: &'static str,
    refused: &'static [(&'static str, &'static str)],
) -> Case {
    Case {
        name,
        value,
        besides: "",
        is_effective,
        on_reload: TakesEffect,
        wrong_type,
        refused,
    }
}

pub(super) const CASES: [Case; 34] = [
    case(
        "high-watermark",
        "80",
        |a| ppm(a.guard.high_watermark) == 800_000,
        "\"80\"",
        &[
            ("1", "1 is not in 2..=100"),
            ("101", "101 is not in 2..=100"),
        ],
    ),
    case(
        "low-watermark",
        "30",
        |a| ppm(a.guard.low_watermark) == 300_000,
        "3.5",
        &[
            ("0", "0 is not in 1..=99"),
            ("100", "100 is not in 1..=99"),
            (
                "70",
                "low-watermark = 70: must be below high-watermark, which is 70",
            ),
        ],
    ),
    case(
        "observe",
        "true",
        |a| a.guard.observe && is_off(a),
        "1",
        &[],
    ),
    case(
        "syn-cookies",
        "false",
        |a| a.guard.syn_cookies == Some(false),
        "0",
        &[],
    ),
    case("trust-tc", "true", |a| a.guard.trust_tc, "1", &[]),
    case(
        "fairness",
        "\"off\"",
        |a| !a.guard.fairness,
        "false",
        &[("\"on\"", "[possible values: sources, off]")],
    ),
    case(
        "cpu-limit",
        "40",
        |a| {
            let governor = a.governor();
            let limits = [governor.cpu_limit, Some(governor.polling_limit)];
            ppm(a.guard.cpu_limit) == 400_000
                && limits.map(|limit| limit.map(ppm)) == [Some(400_000); 2]
        },
        "true",
        &[
            ("0", "0 is not in 1..=100"),
            ("101", "101 is not in 1..=100"),
        ],
    ),
    case(
        "polling-limit",
        "97",
        |a| ppm(a.governor().polling_limit) == 970_000 && ppm(a.guard.cpu_limit) == 850_000,
        "true",
        &[
            ("0", "0 is not in 1..=100"),
            ("101", "101 is not in 1..=100"),
            (
                "84",
                "polling-limit = 84: must not be below cpu-limit, which is 85",
            ),
        ],
    ),
    case(
        "protected-share",
        "0",
        |a| ppm(a.guard.protected_share) == 0,
        "\"0\"",
        &[
            ("-1", "-1 is not in 0..=99"),
            ("100", "100 is not in 0..=99"),
        ],
    ),
    case(
        "protect-ports",
        "[\"53/udp\", \"443/tcp\"]",
        |a| ports(a) == ["53/udp", "443/tcp"],
        "22",
        &[
            ("\"22\"", "\"22\" is no port such as 22/tcp or 53/udp"),
            ("[\"22/tcp\", \"0/udp\"]", "\"0/udp\" is no port"),
            ("\"65536/tcp\"", "\"65536/tcp\" is no port"),
            ("[]", "protect-ports has no value"),
        ],
    ),
    case(
        "protect-sources",
        "\"2001:db8::/32,198.18.0.0\"",
        |a| a.protection.sources.len() == 2,
        "198",
        &[
            ("\"198.18.0.0/33\"", "at most 32 bits"),
            ("\"198.18\"", "must be an IP address or a prefix"),
        ],
    ),
    case(
        "known-sources",
        "\"2001:db8::/32,198.18.0.0/24\"",
        |a| a.protection.known.len() == 2,
        "198",
        &[("\"198.18.0.0/33\"", "at most 32 bits")],
    ),
    Case {
        on_reload: TakesANewStart,
        ..case(
            "known-sources-file",
            "\"/var/lib/plimsoll/guard/eth0.json\"",
            |a| a.known_sources_file.is_some(),
            "5",
            &[],
        )
    },
    Case {
        on_reload: TakesANewStart,
        ..case(
            "protect-processes",
            "[\"/usr/sbin/nsd\", \"/usr/sbin/nginx\"]",
            |a| a.needs().len() == 4 && a.protect_processes.len() == 2,
            "7",
            &[
                (
                    "\"nsd\"",
                    "any process can take a name, so give the path of the executable (`readlink /proc/PID/exe` shows it), or protect-control-groups",
                ),
                ("\"\"", "any process can take a name"),
            ],
        )
    },
    case(
        "protect-control-groups",
        "\"/system.slice/nsd.service\"",
        |a| a.protect_control_groups.len() == 1 && a.needs().len() == 3,
        "7",
        &[
            (
                "\"nsd.service\"",
                "must be a path such as /system.slice/nsd.service",
            ),
            ("\"/\"", "must be a path such as"),
        ],
    ),
    case(
        "protect-connections",
        "false",
        |a| !a.protection.connections,
        "\"no\"",
        &[],
    ),
    case(
        "shares",
        "\"control-group\"",
        |a| a.shares == Shares::ControlGroup,
        "true",
        &[(
            "\"user\"",
            "[possible values: channel, process, control-group]",
        )],
    ),
    case(
        "delay-target-ms",
        "20",
        |a| a.guard.delay_target.is_some(),
        "\"20\"",
        &[
            ("-1", "-1 is not in 0..=60000"),
            ("60001", "60001 is not in 0..=60000"),
        ],
    ),
    case(
        "strategy",
        "\"off\"",
        is_off,
        "false",
        &[("\"threads\"", "[possible values: off, thread, holdoff]")],
    ),
    case("lazy", "false", |a| !a.governor().lazy, "0", &[]),
    case(
        "ring-frames",
        "1024",
        |a| a.governor().ring_frames == Some(1024),
        "\"1024\"",
        &[
            ("15", "15 is not in 16..=1048576"),
            ("1048577", "1048577 is not in 16..=1048576"),
        ],
    ),
    Case {
        on_reload: TakesANewStart,
        ..case(
            "threaded",
            "-5",
            |a| a.threaded.is_some() && is_off(a),
            "false",
            &[
                ("20", "must be a nice level from -20 to 19, or rt"),
                ("-21", "must be a nice level from -20 to 19, or rt"),
                ("\"high\"", "must be a nice level from -20 to 19, or rt"),
            ],
        )
    },
    Case {
        besides: "strategy = \"thread\"",
        ..case(
            "poll-cpu",
            "0",
            |a| a.governor().poll_cpu == Some(0),
            "\"0\"",
            &[
                ("4096", "this host has no such CPU, only 0"),
                ("-1", "is no number of a CPU"),
            ],
        )
    },
    Case {
        besides: "threaded = -5",
        on_reload: TakesANewStart,
        ..case(
            "poll-control-group",
            "\"/sys/fs/cgroup/servers.slice\"",
            |a| a.poll_control_group.is_some(),
            "5",
            &[(
                "\"servers.slice\"",
                "must be the directory of a control group",
            )],
        )
    },
    case("any-driver", "true", |a| a.any_driver, "\"true\"", &[]),
    Case {
        on_reload: TakesANewStart,
        ..case(
            "standby",
            "true",
            |a| a.standby == Some(true),
            "\"true\"",
            &[],
        )
    },
    Case {
        ..case(
            "standby-quiet-s",
            "5",
            |a| a.standby_quiet == Duration::from_secs(5),
            "\"5 s\"",
            &[
                ("0", "0 is not in 1..=86400"),
                ("86401", "86401 is not in 1..=86400"),
            ],
        )
    },
    Case {
        on_reload: TakesANewStart,
        ..case(
            "metrics",
            "\"127.0.0.1:9464\"",
            |a| a.metrics.is_some(),
            "9464",
            &[
                ("\"localhost:9464\"", "invalid socket address syntax"),
                ("\"127.0.0.1:65536\"", "invalid socket address syntax"),
            ],
        )
    },
    Case {
        besides: "metrics = \"127.0.0.1:9464\"",
        on_reload: TakesANewStart,
        ..case(
            "metrics-public",
            "true",
            |s| s.metrics.as_ref().is_some_and(|metrics| metrics.public),
            "\"true\"",
            &[],
        )
    },
    Case {
        besides: "metrics = \"127.0.0.1:9464\"",
        on_reload: TakesANewStart,
        ..case(
            "metrics-channels",
            "5",
            |a| a.metrics.as_ref().is_some_and(|m| m.channels_max == 5),
            "5.0",
            &[
                ("-1", "-1 is not in 0..=16384"),
                ("16385", "16385 is not in 0..=16384"),
            ],
        )
    },
    case(
        "interval-ms",
        "200",
        |a| a.interval.as_millis() == 200,
        "\"200 ms\"",
        &[
            ("99", "99 is not in 100..=60000"),
            ("60001", "60001 is not in 100..=60000"),
        ],
    ),
    Case {
        on_reload: TakesANewStart,
        ..case(
            "quiet",
            "true",
            |a| a.callers["quiet"] == "true",
            "\"true\"",
            &[],
        )
    },
    Case {
        on_reload: TakesANewStart,
        ..case(
            "duration",
            "60",
            |a| a.duration == Some(Duration::from_secs(60)),
            "\"60\"",
            &[
                ("-1", "-1 is not in 0..=1000000000"),
                ("1000000001", "1000000001 is not in 0..=1000000000"),
            ],
        )
    },
    Case {
        on_reload: TakesANewStart,
        ..case(
            "json",
            "\"-\"",
            |a| a.callers["json"].contains('-'),
            "true",
            &[],
        )
    },
];

fn ppm(fraction: Fraction) -> u32 {
    fraction.as_ppm()
}

fn is_off(settings: &Settings) -> bool {
    settings.governor().strategy == Strategy::Off
}

pub(super) fn ports(settings: &Settings) -> Vec<String> {
    let ports = settings.protection.ports.iter();
    ports.map(ToString::to_string).collect()
}
