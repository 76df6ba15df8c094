//! Two interfaces whose packets one CPU receives: a flood of one once turned the settings
//! of the other, which was calm. Alone in its file: a polling thread of another test would
//! leave the servers no CPU to start on. Needs root.

use plimsoll_testbed::{Config, Testbed};

use crate::common::overload::{
    await_report, busy_server, flood, flooded, receive_on_test_cpu, settings,
};
use crate::common::start_with;

const PORT: u16 = 7000;
const RATE_PPS: u64 = 600_000;

fn testbed() -> Testbed {
    let testbed = Testbed::create(Config::default()).unwrap();
    receive_on_test_cpu(&testbed);
    testbed
}

/// Where other processes take the CPU, the flood cannot: the exact rule is tested in core.
#[test]
fn a_calm_interface_is_left_alone_while_another_is_flooded() {
    let (calm, other) = (testbed(), testbed());
    let host = calm.test();
    assert_eq!(host.cpu(), other.test().cpu());
    let (_guard, mut reports) = start_with(host, &["--interval-ms", "100"]);
    receive_on_test_cpu(&calm);
    let before = settings(host);
    let _servers = [host, other.test()].map(|host| busy_server(host, PORT));
    let _computing = host.computing().spawn().unwrap();
    let trickle = flood(&calm, PORT..=PORT, 1000);
    let whole = flood(&other, PORT..=PORT, RATE_PPS);
    flooded(&calm, &trickle, || {
        flooded(&other, &whole, || {
            let (mut looks, mut busy, mut flooded) = (0, 0, 0);
            await_report(&mut reports, "that the network takes time", |report| {
                let governor = &report["governor"];
                assert_eq!(governor["switches"], 0, "{governor}");
                let share = governor["network_share"].as_f64().unwrap();
                looks += 1;
                flooded += usize::from(share > 0.15);
                busy += usize::from(share > 0.5);
                busy == 10 || (looks > 100 && flooded > 50)
            });
            assert_eq!(settings(host), before);
        });
    });
}
