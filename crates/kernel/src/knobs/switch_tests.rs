//! The device's own switch of threaded polling, all that kernels before 6.17 have.
//! Needs root.

use super::*;
use crate::iproute::ip;
use crate::namespace;
use crate::pass_all::PassAll;
use crate::scheduling::{Priority, Scheduling};

/// Runs `test` in a network namespace with a veth end `v0`.
fn with_veth(test: impl FnOnce(&Path) + Send) {
    let inside = || {
        for words in [
            "link add v0 type veth peer name v1",
            "link set v0 up",
            "link set v1 up",
        ] {
            ip(words);
        }
        test(tempfile::tempdir().unwrap().path());
    };
    namespace::in_new(inside).expect("this test makes a namespace: run `sudo make test`");
}

#[test]
fn queues_that_can_be_switched_alone_leave_the_device_s_switch_as_it_is() {
    with_veth(|directory| {
        let _pass_all = PassAll::attach("v0").unwrap();
        let mut knobs = Knobs::open_in(directory, "v0").unwrap();
        let is_told = knobs.instances().unwrap()[0].threaded.is_some();
        knobs.set_threaded(Queues::All, true).unwrap();
        assert_eq!(knobs.polling_threads().unwrap().len(), 1);
        let switch = knobs.device.attribute(Attribute::Threaded).unwrap();
        assert_eq!(switch, Some(u64::from(!is_told)));
        knobs.restore().unwrap();
        assert_eq!(knobs.polling_threads().unwrap(), []);
    });
}

/// A tap device stands for an adapter whose driver was never tried.
#[test]
fn a_driver_that_was_not_tried_is_refused_unless_any_is_allowed() {
    with_veth(|directory| {
        ip("tuntap add t0 mode tap");
        let mut knobs = Knobs::open_in(directory, "t0").unwrap();
        let error = knobs.set_threaded(Queues::All, true).unwrap_err();
        assert!(matches!(error, TurnError::UntriedDriver { .. }), "{error}");
        assert_eq!(error.exit_code(), 3);
        let told = error.to_string();
        assert!(
            told.contains("`tun`") && told.contains("`any-driver`"),
            "{told}"
        );
        // What is off may be switched off.
        let off = knobs.set_threaded(Queues::All, false);
        assert!(!matches!(off, Err(TurnError::UntriedDriver { .. })));
        knobs.allow_any_driver(true);
        let allowed = knobs.set_threaded(Queues::All, true);
        assert!(!matches!(allowed, Err(TurnError::UntriedDriver { .. })));
        let veth = Knobs::open_in(directory, "v0").unwrap();
        veth.check_driver().unwrap();
    });
}

#[test]
fn the_switch_is_turned_and_back() {
    with_veth(|directory| {
        let _pass_all = PassAll::attach("v0").unwrap();
        let mut knobs = Knobs::open_in(directory, "v0").unwrap();
        knobs.turn_device(&[(Attribute::Threaded, 1)]).unwrap();
        assert_eq!(knobs.polling_threads().unwrap().len(), 1);
        assert_eq!(
            knobs.device.attribute(Attribute::Threaded).unwrap(),
            Some(1)
        );
        knobs.restore().unwrap();
        assert_eq!(knobs.polling_threads().unwrap(), []);
        assert_eq!(
            knobs.device.attribute(Attribute::Threaded).unwrap(),
            Some(0)
        );
    });
}

/// Nobody could put them back.
#[test]
fn without_a_place_for_the_record_neither_a_thread_nor_the_device_is_turned() {
    with_veth(|directory| {
        let records = directory.join("records");
        let _pass_all = PassAll::attach("v0").unwrap();
        let mut knobs = Knobs::open_in(&records, "v0").unwrap();
        knobs.set_threaded(Queues::All, true).unwrap();
        let thread = knobs.polling_threads().unwrap()[0].tid;
        let before = Scheduling::of(thread).unwrap();
        fs::remove_dir_all(&records).unwrap();
        let refused = knobs.set_thread_priority(thread, Priority::Nice(7));
        assert!(matches!(refused, Err(TurnError::Record(_))), "{refused:?}");
        assert_eq!(Scheduling::of(thread).unwrap(), before);
        let attribute = Attribute::NapiDeferHardIrqs;
        let refused = knobs.turn_device(&[(attribute, 7)]);
        assert!(matches!(refused, Err(TurnError::Record(_))), "{refused:?}");
        assert_eq!(knobs.device.attribute(attribute).unwrap(), Some(0));
    });
}

#[test]
fn what_takes_no_setting_now_gets_it_back_once_it_does() {
    with_veth(|directory| {
        let pass_all = PassAll::attach("v0").unwrap();
        let mut knobs = Knobs::open_in(directory, "v0").unwrap();
        knobs.turn_device(&[(Attribute::Threaded, 1)]).unwrap();
        // Without XDP, veth has no instances and refuses the switch.
        drop(pass_all);
        let deferred = knobs.restore().unwrap_err();
        assert!(
            matches!(deferred, RestoreError::Deferred { .. }),
            "{deferred}"
        );
        drop(knobs);

        let mut knobs = Knobs::open_in(directory, "v0").unwrap();
        assert!(!knobs.is_untouched(), "it is still known");
        let _pass_all = PassAll::attach("v0").unwrap();
        assert_eq!(knobs.polling_threads().unwrap().len(), 1);
        knobs.restore().unwrap();
        assert_eq!(knobs.polling_threads().unwrap(), []);
        drop(knobs);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
    });
}

/// Has an application's suspension allowed on all instances of an interface.
fn suspend(ifindex: u32, timeout: u32) -> bool {
    use netlink_bindings::netdev;
    for napi in Netdev::new().instances(ifindex).unwrap() {
        if napi.irq_suspend_timeout.is_none() {
            return false;
        }
        let mut request = netdev::Request::new().op_napi_set_do();
        let attributes = request.encode().push_id(napi.id);
        attributes.push_irq_suspend_timeout(timeout);
        let mut socket = crate::netlink::Socket::new();
        let mut replies = socket.request(&request).unwrap();
        while let Some(reply) = replies.recv() {
            reply.unwrap();
        }
    }
    true
}

#[test]
fn an_instance_that_an_application_suspends_is_left_alone() {
    with_veth(|directory| {
        let _pass_all = PassAll::attach("v0").unwrap();
        let mut knobs = Knobs::open_in(directory, "v0").unwrap();
        let ifindex = link::index("v0").unwrap();
        if !suspend(ifindex, 20_000_000) {
            eprintln!("skipped: Linux before 6.13 suspends nothing");
            return;
        }
        let before = knobs.instances().unwrap();
        assert!(before[0].is_suspended_by_application());
        let holdoff = std::time::Duration::from_micros(50);
        knobs.set_holdoff(Queues::All, 100, holdoff).unwrap();
        if before[0].threaded.is_some() {
            knobs.set_threaded(Queues::All, true).unwrap();
        }
        assert_eq!(knobs.instances().unwrap(), before);
        assert!(suspend(ifindex, 0));
        knobs.set_holdoff(Queues::All, 100, holdoff).unwrap();
        let set = knobs.instances().unwrap()[0].gro_flush_timeout;
        assert_eq!(set, Some(50_000), "it suspends nothing any more");
        knobs.restore().unwrap();
    });
}
