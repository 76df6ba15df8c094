//! An interface with two receive queues that two CPUs poll: sums are exact, each
//! packet is its channel's, and the governor turns every queue. Needs root.

use std::io::BufRead;

use plimsoll_testbed::blast::Spec;
use plimsoll_testbed::{Config, Host, Testbed};
use serde_json::Value;

use crate::common::overload::{
    Settings, await_mode, await_report, busy_server, class_of, flood, flooded, settings,
};
use crate::common::{LIMIT, start_with};
use crate::turn;

/// Ports of the servers: of the first queue's flood, of the second one's, of both.
const FIRST: u16 = 7000;
const SECOND: u16 = 7001;
const BOTH: u16 = 7002;
const QUEUES: usize = 2;

/// A testbed whose ends have two queues: frames that XDP redirects arrive in the
/// queue with the number of the CPU that sent them.
fn testbed() -> Testbed {
    let testbed = Testbed::create(Config::default()).unwrap();
    for host in [testbed.test(), testbed.load()] {
        let arguments = ["-L", host.device(), "rx", "2", "tx", "2"];
        let mut ethtool = host.command("ethtool");
        ethtool.args(arguments).output(LIMIT).unwrap();
        let arguments = ["-K", host.device(), "gro", "on"];
        let mut ethtool = host.command("ethtool");
        ethtool.args(arguments).output(LIMIT).unwrap();
    }
    testbed
}

/// What one CPU sends: to its own port and to the common one.
fn from_cpu(testbed: &Testbed, cpu: usize, port: u16, rate_pps: u64) -> [Spec; 2] {
    [port, BOTH].map(|port| {
        let mut spec = flood(testbed, port..=port, rate_pps);
        spec.cpu = Some(cpu);
        spec
    })
}

/// Does `work` while both CPUs send; what was sent to each port.
fn flooded_from_both(testbed: &Testbed, rate_pps: u64, work: impl FnOnce()) -> [(u16, u64); 3] {
    let (load, test) = (testbed.load().cpu(), testbed.test().cpu());
    let [first, first_both] = from_cpu(testbed, load, FIRST, rate_pps);
    let [second, second_both] = from_cpu(testbed, test, SECOND, rate_pps);
    let from_second = || flooded(testbed, &second, || flooded(testbed, &second_both, work).1);
    let from_first = || flooded(testbed, &first_both, from_second);
    let (((in_second_both, in_second), in_first_both), in_first) =
        flooded(testbed, &first, from_first);
    [
        (FIRST, in_first.sent),
        (SECOND, in_second.sent),
        (BOTH, in_first_both.sent + in_second_both.sent),
    ]
}

fn offered(packets: &Value) -> u64 {
    let counts = packets.as_object().unwrap().values();
    counts.map(|count| count.as_u64().unwrap()).sum()
}

/// Packets offered to a port, which is one channel whichever CPU saw it.
fn offered_to(report: &Value, port: u16) -> u64 {
    let channels = report["channels"].as_array().unwrap();
    let mut of_port = channels.iter().filter(|channel| channel["port"] == port);
    let packets = of_port.next().map(|channel| offered(&channel["packets"]));
    assert_eq!(of_port.next(), None, "port {port} has one channel");
    packets.unwrap_or(0)
}

/// Waits until the guard has counted as many as were sent, in total and by port.
fn assert_counted(reports: &mut impl BufRead, sent: &[(u16, u64)]) {
    let all: u64 = sent.iter().map(|(_, packets)| packets).sum();
    let report = await_report(reports, "all that was sent", |report| {
        offered(&report["totals"]["udp_socket"]) >= all
    });
    let totals = report["totals"].as_object().unwrap();
    assert_eq!(totals.values().map(offered).sum::<u64>(), all);
    for (port, packets) in sent {
        assert_eq!(offered_to(&report, *port), *packets, "port {port}");
    }
}

#[test]
fn two_cpus_count_exactly_and_each_channel_once() {
    let _alone = turn();
    let testbed = testbed();
    let host = testbed.test();
    let arguments = ["--interval-ms", "100", "--strategy", "off"];
    let (_guard, mut reports) = start_with(host, &arguments);
    assert_eq!(settings(host).0.instances.len(), QUEUES);
    let _servers = [FIRST, SECOND, BOTH].map(|port| busy_server(host, port));
    let sent = flooded_from_both(&testbed, 100_000, || {
        // Loading a generator takes its time on a busy machine.
        await_report(&mut reports, "packets to each port", |report| {
            let ports = [FIRST, SECOND, BOTH];
            ports.iter().all(|port| offered_to(report, *port) > 10_000)
        });
    });
    assert_counted(&mut reports, &sent);
}

/// A thread per queue, ahead of all processes or, by a CPU limit, behind them.
fn are_governed(threads: &[i32]) -> bool {
    let is_governed = |thread: &i32| matches!(class_of(*thread), Some(1 | 5));
    threads.len() == QUEUES && threads.iter().all(is_governed)
}

/// Waits until all is as before. A report may be older than the settings: the guard can
/// have been calm in between, while the link was down.
fn await_return(reports: &mut impl BufRead, host: &Host, before: &(Settings, Vec<i32>)) {
    await_report(reports, "that all is as before", |report| {
        report["governor"]["mode"] == "interrupts" && settings(host) == *before
    });
}

#[test]
fn every_queue_gets_a_thread_and_a_holdoff_and_loses_both_again() {
    let _alone = turn();
    let testbed = testbed();
    let host = testbed.test();
    let arguments = ["--interval-ms", "100", "--strategy", "thread"];
    let (_guard, mut reports) = start_with(host, &arguments);
    let before = settings(host);
    let _servers = [FIRST, SECOND, BOTH].map(|port| busy_server(host, port));
    let _computing = host.computing().spawn().unwrap();
    let sent = flooded_from_both(&testbed, 200_000, || {
        await_mode(&mut reports, "overload");
        let (turned, threads) = settings(host);
        assert!(are_governed(&threads), "{threads:?}");
        assert_eq!(turned.instances.len(), QUEUES);
        for napi in &turned.instances {
            assert_eq!(napi.threaded, Some(1));
            assert_ne!(napi.gro_flush_timeout, Some(0));
            assert_eq!(
                napi.defer_hard_irqs,
                Some(plimsoll_kernel::knobs::DEFER_MARK)
            );
        }
    });
    assert_counted(&mut reports, &sent);
    await_return(&mut reports, host, &before);
}

/// How many instances are held off.
fn held_off(host: &Host) -> usize {
    let instances = settings(host).0.instances;
    let mark = Some(plimsoll_kernel::knobs::DEFER_MARK);
    let held_off = instances.iter().filter(|napi| napi.defer_hard_irqs == mark);
    held_off.count()
}

/// What comes by another queue than the flood's once waited for the flood's holdoff.
#[test]
fn a_queue_that_is_not_flooded_keeps_the_host_s_own_settings() {
    let _alone = turn();
    let testbed = testbed();
    let host = testbed.test();
    let (_guard, mut reports) = start_with(host, &["--interval-ms", "100"]);
    let before = settings(host);
    let _servers = [FIRST, SECOND, BOTH].map(|port| busy_server(host, port));
    let _computing = host.computing().spawn().unwrap();
    let [first, _] = from_cpu(&testbed, testbed.load().cpu(), FIRST, 400_000);
    let [little, _] = from_cpu(&testbed, host.cpu(), SECOND, 200);
    let [much, _] = from_cpu(&testbed, host.cpu(), SECOND, 50_000);
    let (sent, _) = flooded(&testbed, &first, || {
        let (_, little) = flooded(&testbed, &little, || {
            await_mode(&mut reports, "overload");
            for _ in 0..20 {
                let mut all = await_report(&mut reports, "any", |_| true);
                let held_off = held_off(host);
                let governor = all["governor"].take();
                assert!(held_off <= 1, "{held_off} held off: {governor}");
                if governor["mode"] == "overload" {
                    assert_eq!(held_off, 1, "{governor}");
                }
            }
        });
        let (_, much) = flooded(&testbed, &much, || {
            await_report(&mut reports, "both queues", |_| held_off(host) == QUEUES);
        });
        little.sent + much.sent
    });
    await_report(&mut reports, "all of the second queue", |report| {
        offered_to(report, SECOND) == sent
    });
    await_return(&mut reports, host, &before);
}

/// Link down and up, a new ring size: the driver makes its instances anew, without
/// threads and holdoffs. The governor once went on as if it had set them.
#[test]
fn instances_made_anew_in_overload_are_turned_as_well() {
    let _alone = turn();
    let testbed = testbed();
    let host = testbed.test();
    let arguments = ["--interval-ms", "100", "--strategy", "thread"];
    let (_guard, mut reports) = start_with(host, &arguments);
    let before = settings(host);
    let _servers = [FIRST, SECOND, BOTH].map(|port| busy_server(host, port));
    let _computing = host.computing().spawn().unwrap();
    flooded_from_both(&testbed, 200_000, || {
        await_mode(&mut reports, "overload");
        let old = settings(host).1;
        for state in ["down", "up"] {
            let arguments = ["link", "set", host.device(), state];
            host.command("ip").args(arguments).output(LIMIT).unwrap();
        }
        // The governor may be faster than a look at what the driver has made; that
        // the threads are others tells that it was made anew.
        await_report(&mut reports, "threads again", |_| {
            let (now, threads) = settings(host);
            let is_turned = now.instances.iter().all(|napi| {
                napi.threaded == Some(1)
                    && napi.defer_hard_irqs == Some(plimsoll_kernel::knobs::DEFER_MARK)
            });
            is_turned
                && are_governed(&threads)
                && threads.iter().all(|thread| !old.contains(thread))
        });
    });
    await_return(&mut reports, host, &before);
}
