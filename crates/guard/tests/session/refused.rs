//! A start that fails since the interface takes no program. A service manager tries it again and
//! again.

use plimsoll_guard::session::Settings;
use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::pass_all::PassAll;

use crate::common::ip;
use crate::common::notes::{Notes, Seen};
use crate::descriptors::cpu_time;
use crate::{run, settings};

pub(crate) const TESTS: [(&str, fn()); 2] = [
    (
        "a_start_beside_another_program_costs_next_to_nothing",
        a_start_beside_another_program_costs_next_to_nothing,
    ),
    (
        "nor_does_one_where_the_driver_has_no_native_xdp",
        nor_does_one_where_the_driver_has_no_native_xdp,
    ),
];

/// The program was loaded first, each second, for as long as the service was enabled.
fn a_start_beside_another_program_costs_next_to_nothing() {
    let _other = PassAll::attach("v0").unwrap();
    costs_next_to_nothing(&settings(), "already runs an XDP program");
}

/// A bridge stands for an adapter. It did there as well, also where it was to stand by.
fn nor_does_one_where_the_driver_has_no_native_xdp() {
    ip("link add br0 type bridge");
    for standby in [false, true] {
        let settings = Settings {
            standby: Some(standby),
            ..Settings::new("br0")
        };
        costs_next_to_nothing(&settings, "no native XDP");
    }
}

fn costs_next_to_nothing(settings: &Settings, refusal: &str) {
    let before = cpu_time();
    Guard::load(&mut Storage::default(), &Config::default()).unwrap();
    let load = cpu_time() - before;
    let before = cpu_time();
    let refused = run(settings.clone(), &mut Notes::new(|_: Seen<'_>| Ok(())));
    let took = cpu_time() - before;
    let said = with_causes(&refused.unwrap_err());
    assert!(said.contains(refusal), "{said}");
    println!("a start took {took:?}, to load the program {load:?}");
    assert!(took < load / 4, "{took:?} beside {load:?}");
}
