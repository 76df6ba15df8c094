//! The books of a CPU, step by step (`bpf/meter_steps.bpf.c`): what no kernel of the tests does.

use std::mem::MaybeUninit;

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::namespace::pin;

include!(concat!(env!("OUT_DIR"), "/meter_steps.rs")); // mod skeleton

use skeleton::types;

const APP: u32 = types::account::ACCOUNT_APP.0;
const NETWORK: u32 = types::account::ACCOUNT_NETWORK.0;
const OTHER: u32 = types::account::ACCOUNT_OTHER.0;
const IDLE: u32 = types::account::ACCOUNT_IDLE.0;

/// An event of the kernel: a number (`enum event`), a task by its number, an account.
type Step = [u32; 3];

const fn switch(task: u32, account: u32) -> Step {
    [0, task, account]
}

const fn entry(task: u32, account: u32) -> Step {
    [1, task, account]
}

const EXIT: Step = [2, 0, 0];

/// The account that goes on after each step. Needs root.
fn accounts<const N: usize>(steps: [Step; N]) -> [u32; N] {
    // Each CPU has books of its own.
    std::thread::scope(|scope| scope.spawn(|| on_one_cpu(steps)).join().unwrap())
}

fn on_one_cpu<const N: usize>(steps: [Step; N]) -> [u32; N] {
    pin(0).unwrap();
    let mut place = MaybeUninit::uninit();
    let mut open = skeleton::MeterStepsSkelBuilder::default()
        .open(&mut place)
        .unwrap();
    open.maps
        .bss_data
        .as_deref_mut()
        .unwrap()
        .meter_settings
        .window_ns = 1;
    let program = open.load().unwrap();
    steps.map(|step| {
        let mut step = step.map(u32::to_ne_bytes).concat();
        let input = ProgramInput {
            context_in: Some(&mut step),
            ..ProgramInput::default()
        };
        program
            .progs
            .take_step
            .test_run(input)
            .unwrap()
            .return_value
    })
}

#[test]
fn a_softirq_is_booked_on_top_of_its_task_and_that_one_goes_on() {
    let steps = [
        switch(7, APP),
        entry(7, NETWORK),
        EXIT,
        entry(7, OTHER),
        EXIT,
        switch(0, IDLE),
        entry(0, NETWORK),
        EXIT,
    ];
    let expected = [APP, NETWORK, APP, OTHER, APP, IDLE, NETWORK, IDLE];
    assert_eq!(accounts(steps), expected);
}

/// With `PREEMPT_RT`, the time of a process that preempted receiving was booked as receiving. Such
/// a host got a holdoff, and had packets shed, without need.
#[test]
fn who_preempts_a_softirq_has_time_of_his_own() {
    let steps = [
        // In the thread of an interrupt.
        switch(7, OTHER),
        entry(7, NETWORK),
        switch(8, APP),
        switch(9, APP),
        // Of the same account as the softirq's task.
        switch(10, OTHER),
        switch(7, OTHER),
        EXIT,
        switch(8, APP),
    ];
    let expected = [OTHER, NETWORK, APP, APP, OTHER, NETWORK, OTHER, APP];
    assert_eq!(accounts(steps), expected);
}
