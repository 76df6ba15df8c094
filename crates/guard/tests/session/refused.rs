//! A start that fails since another program is there. A service manager tries it again and again.

use plimsoll_guard::{Config, Guard, Storage};
use plimsoll_kernel::error::with_causes;
use plimsoll_kernel::pass_all::PassAll;

use crate::common::notes::{Notes, Seen};
use crate::descriptors::cpu_time;
use crate::{run, settings};

pub(crate) const TESTS: [(&str, fn()); 1] = [(
    "a_start_beside_another_program_costs_next_to_nothing",
    a_start_beside_another_program_costs_next_to_nothing,
)];

/// The program was loaded first, each second, for as long as the service was enabled.
fn a_start_beside_another_program_costs_next_to_nothing() {
    let before = cpu_time();
    Guard::load(&mut Storage::default(), &Config::default()).unwrap();
    let load = cpu_time() - before;
    let _other = PassAll::attach("v0").unwrap();
    let before = cpu_time();
    let refused = run(settings(), &mut Notes::new(|_: Seen<'_>| Ok(())));
    let took = cpu_time() - before;
    let said = with_causes(&refused.unwrap_err());
    assert!(said.contains("already runs an XDP program"), "{said}");
    println!("a start took {took:?}, to load the program {load:?}");
    assert!(took < load / 4, "{took:?} beside {load:?}");
}
