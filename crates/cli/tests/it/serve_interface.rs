//! What `plimsoll serve` sets on its interface is put back when it ends and when it is killed.
//! In network namespaces; needs root.

use std::io::{self, Read};
use std::process::Stdio;

use plimsoll_kernel::knobs::{Attribute, Device, Netdev};
use plimsoll_kernel::link;
use plimsoll_kernel::scheduling::Scheduling;

use crate::serving::{Server, client_of_an_echo, eventually, with_link};
use crate::shell::run;

#[test]
fn a_killed_server_leaves_the_interface_as_it_was() {
    with_link(|| {
        let serve = || Server::start("echo --port 7 --on af_xdp:stack0 --address 10.0.0.2/24");
        let steered = || run("ip -details link show stack0").contains("xdp");
        let mut server = serve();
        eventually("the program", || steered().then_some(()));
        server.0.kill().unwrap();
        server.0.wait().unwrap();
        eventually("the end of the program", || (!steered()).then_some(()));
        let _again = serve();
        client_of_an_echo();
    });
}

/// It had ended with success, and without a word.
#[test]
fn a_deleted_interface_ends_it_with_the_reason_and_its_counts() {
    for on in ["packet:stack0", "af_xdp:stack0"] {
        with_link(|| {
            let mut server =
                Server::start_telling(&format!("echo --port 7 --on {on} --address 10.0.0.2/24"));
            client_of_an_echo();
            run("ip link del stack0");
            let ended = eventually("its end", || server.0.try_wait().unwrap());
            assert_eq!(ended.code(), Some(1), "{on}");
            let [mut counts, mut told] = [String::new(), String::new()];
            let output = server.0.stdout.as_mut().unwrap();
            output.read_to_string(&mut counts).unwrap();
            let says = server.0.stderr.as_mut().unwrap();
            says.read_to_string(&mut told).unwrap();
            assert!(told.contains("the interface is gone"), "{on}: {told}");
            let counts: serde_json::Value = serde_json::from_str(&counts).unwrap();
            assert!(counts["received"].as_u64() > Some(0), "{on}: {counts}");
        });
    }
}

/// What the kernel has set for the interface and its NAPI instances.
fn holdoffs() -> Vec<Option<u32>> {
    let index = link::index("stack0").unwrap();
    let instances = Netdev::new().instances(index).unwrap();
    let device = Device::open("stack0", index).unwrap();
    let of_device = device.attribute(Attribute::GroFlushTimeout).unwrap();
    let of_device = of_device.map(|nanos| nanos as u32);
    let instances = instances.iter().map(|napi| napi.gro_flush_timeout);
    instances.chain([of_device]).collect()
}

#[test]
fn a_holdoff_is_set_and_put_back_after_an_end_and_after_a_kill() {
    with_link(|| {
        let has = |nanos: u32| holdoffs().contains(&Some(nanos));
        for killed in [false, true] {
            let server = Server::start(
                "echo --port 7 --on af_xdp:stack0 --address 10.0.0.2/24 --holdoff-us 40 \
                 --metrics 127.0.0.1:0",
            );
            eventually("the holdoff", || has(40_000).then_some(()));
            client_of_an_echo();
            server.end(killed);
            eventually("the old one", || (!has(40_000)).then_some(()));
        }
    });
}

/// How the threads that poll the interface are scheduled.
fn polling_threads() -> Vec<Scheduling> {
    let instances = Netdev::new().instances(link::index("stack0").unwrap());
    let threads = instances.unwrap().into_iter();
    let threads = threads.filter_map(|napi| napi.thread);
    // One that is just ending is gone.
    threads.filter_map(|tid| Scheduling::of(tid).ok()).collect()
}

/// Above, its threads are real-time ones: nobody else is left to end them. `--threaded auto` is
/// the default on this path.
#[test]
fn threads_are_placed_and_put_back_after_an_end_and_after_a_kill() {
    with_link(|| {
        // With it there are NAPI instances also without XDP, so that all can be put back.
        run("ethtool -K stack0 gro on");
        for killed in [false, true] {
            let server = Server::start(
                "echo --port 7 --on af_xdp:stack0 --address 10.0.0.2/24 --path ni-lrp",
            );
            eventually("a thread before every process", || {
                let threads = polling_threads();
                let real_time = |thread: &Scheduling| thread.to_string().starts_with("policy 1,");
                (!threads.is_empty() && threads.iter().all(real_time)).then_some(())
            });
            client_of_an_echo();
            server.end(killed);
            eventually("no threads", || polling_threads().is_empty().then_some(()));
            let device = Device::open("stack0", link::index("stack0").unwrap()).unwrap();
            eventually("the old switch", || {
                (device.attribute(Attribute::Threaded).unwrap() == Some(0)).then_some(())
            });
        }
    });
}

/// It had panicked when nobody could read its warning any more.
#[test]
fn a_warning_that_nobody_reads_ends_nothing() {
    with_link(|| {
        // With several queues it cannot poll as it is asked to, and warns.
        run("ethtool -L stack0 rx 2");
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let serve = "echo --port 7 --on af_xdp:stack0 --address 10.0.0.2/24 --path ni-lrp";
        let _server = Server::start_saying(serve, Stdio::from(writer));
        client_of_an_echo();
    });
}
