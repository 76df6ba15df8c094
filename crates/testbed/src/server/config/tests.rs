use clap::Parser;
use plimsoll_core::pacing::Rate;
use plimsoll_kernel::error::USED_WRONGLY;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    config: Config,
}

#[test]
fn the_arguments_parse_back_to_the_config() {
    let config = Config {
        kind: Kind::Echo,
        port: 9000,
        work: Duration::from_nanos(2_500),
        on: On::AfXdp("eth0".to_owned()),
        address: vec!["198.18.0.2/24".parse().unwrap()],
        vlan: Some(100),
        zero_copy: true,
        holdoff: Some(Duration::from_nanos(40_500)),
        threaded: Some(Threaded::Auto),
        poll_control_group: Some("/sys/fs/cgroup/servers.slice".into()),
        any_driver: true,
        gateway: vec!["198.18.0.1".parse().unwrap()],
        announce: true,
        path: Some(ReceivePath::NiLrp),
        work_ahead: true,
        batch: Some(32),
        root: Some("/srv".into()),
        pace: Some(Pace::At(Rate::clamped(12_500_000))),
        tcp_buffer_bytes: Some(1 << 20),
        connections: 10_000,
        rcvbuf_bytes: Some(1 << 20),
        zone: Some("/etc/zone".into()),
        bystander: Some(7),
        busy_poll: Duration::from_micros(50),
        counters: Some("/proc/1/fd/3".into()),
    };
    for config in [config, Config::new(Kind::Sink, 1)] {
        let words = std::iter::once("serve".to_owned()).chain(config.to_args());
        assert_eq!(Line::try_parse_from(words).unwrap().config, config);
    }
}

#[test]
fn the_help_names_each_receive_path() {
    let command = <Line as clap::CommandFactory>::command();
    let path = command.get_arguments().find(|one| one.get_id() == "path");
    let help = path.and_then(clap::Arg::get_help).unwrap().to_string();
    for name in ReceivePath::NAMES {
        assert!(help.contains(name), "{name}: {help}");
    }
}

/// What `bench stack` measures by default is what a server does by default.
#[test]
fn the_kernel_polls_by_the_governor_where_that_can_pay() {
    let own = Config {
        on: On::AfXdp("eth0".to_owned()),
        path: Some(ReceivePath::NiLrp),
        ..Config::new(Kind::Sink, 1)
    };
    assert_eq!(own.polled(), Threaded::Auto);
    let others = [
        Config {
            kind: Kind::Http,
            ..own.clone()
        },
        Config {
            busy_poll: Duration::from_micros(50),
            ..own.clone()
        },
        Config {
            path: Some(ReceivePath::SoftLrp),
            ..own.clone()
        },
        Config {
            on: On::Kernel,
            ..own.clone()
        },
        Config {
            threaded: Some(Threaded::Off),
            ..own
        },
    ];
    for config in others {
        assert_eq!(config.polled(), Threaded::Off, "{config:?}");
    }
}

#[test]
fn datagrams_are_taken_together_where_no_answer_waits_for_it() {
    let with = |kind, on, work_us| Config {
        on,
        work: Duration::from_micros(work_us),
        ..Config::new(kind, 53)
    };
    let tap = || On::Tap("tap0".to_owned());
    for (config, batch) in [
        (with(Kind::Dns, tap(), 0), BATCH),
        (with(Kind::Echo, tap(), 0), BATCH),
        (with(Kind::Echo, tap(), 1), 1),
        (with(Kind::Rpc, tap(), 0), 1),
        (with(Kind::Dns, On::Kernel, 0), BATCH),
        (with(Kind::Echo, On::Kernel, 0), 1),
    ] {
        assert_eq!(config.batch(), batch, "{config:?}");
        let given = Config {
            batch: Some(7),
            ..config
        };
        assert_eq!(given.batch(), 7);
    }
}

#[test]
fn an_estimated_pace_needs_our_own_stack() {
    for pace in [Pace::Last, Pace::Acks] {
        let config = Config {
            pace: Some(pace),
            ..Config::new(Kind::Http, 80)
        };
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("--pace last or acks"), "{error}");
    }
}

#[test]
fn addresses_are_announced_where_there_are_neighbours() {
    for (on, fits) in [
        (On::Tun("tun0".to_owned()), false),
        (On::Tap("tap0".to_owned()), true),
    ] {
        let config = Config {
            on,
            address: vec!["10.0.0.2/24".parse().unwrap()],
            announce: true,
            ..Config::new(Kind::Echo, 7)
        };
        assert_eq!(config.validate().is_ok(), fits, "{}", config.on);
    }
}

#[test]
fn what_is_of_no_use_is_refused() {
    let given = |kind, set: fn(&mut Config)| {
        let mut config = Config::new(kind, 80);
        set(&mut config);
        config
    };
    let on_packet_socket = |config: &mut Config| {
        config.on = On::Packet("eth0".to_owned());
        config.address = vec!["198.18.0.2/24".parse().unwrap()];
        config.poll_control_group = Some("/sys/fs/cgroup/a".into());
    };
    let buffer_of_udp = |config: &mut Config| {
        config.on = On::Packet("eth0".to_owned());
        config.tcp_buffer_bytes = Some(1 << 20);
    };
    for (config, field) in [
        (
            given(Kind::Echo, |c| c.root = Some("/srv".into())),
            "root = /srv",
        ),
        (
            given(Kind::Http, |c| c.zone = Some("zone".into())),
            "zone = zone",
        ),
        (
            given(Kind::Sink, |c| {
                c.gateway = vec!["10.0.0.1".parse().unwrap()];
            }),
            "gateway = 10.0.0.1",
        ),
        (given(Kind::Echo, |c| c.announce = true), "announce = yes"),
        (
            given(Kind::Echo, |c| c.pace = Some(Pace::Acks)),
            "pace = acks",
        ),
        (
            given(Kind::Echo, |c| c.path = Some(ReceivePath::NiLrp)),
            "path = ni-lrp",
        ),
        (
            given(Kind::Echo, on_packet_socket),
            "poll-control-group = /sys/fs/cgroup/a",
        ),
        (
            given(Kind::Http, |c| c.tcp_buffer_bytes = Some(1 << 20)),
            "tcp-buffer-bytes = 1048576",
        ),
        (
            given(Kind::Echo, buffer_of_udp),
            "tcp-buffer-bytes = 1048576",
        ),
    ] {
        let error = config.validate().unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
        assert_eq!(error.exit_code(), USED_WRONGLY);
    }
}

#[test]
fn work_is_given_in_microseconds() {
    assert_eq!(parse_micros("2"), Ok(Duration::from_micros(2)));
    assert_eq!(parse_micros("0.5"), Ok(Duration::from_nanos(500)));
    for wrong in ["-1", "nan", "1e9", "two"] {
        assert!(parse_micros(wrong).is_err(), "{wrong}");
    }
}
